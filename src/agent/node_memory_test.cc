// The shared memory that a node needs, as the preflight computes it.

#include <gtest/gtest.h>

#include "agent/agent.h"

namespace keepstep::agent {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

JobSpec of_nodes(uint32_t nodes) {
  JobSpec spec;
  spec.nnodes = nodes;
  spec.nproc_per_node = 8;
  return spec;
}

// The figures are in docs/formats/pages.md.
TEST(NodeMemory, eight_ranks_of_a_world_of_1024_take_hardly_more_than_eight_of_a_world_of_16) {
  const uint64_t small = shared_memory_bytes(of_nodes(2));
  const uint64_t large = shared_memory_bytes(of_nodes(128));
  RecordProperty("bytes_of_a_world_of_1024", std::to_string(large));
  EXPECT_LT(large, 300 * kMiB);
  EXPECT_LT(large - small, kMiB);
}

TEST(NodeMemory, the_most_nodes_of_an_elastic_job_count_in_a_line_too) {
  JobSpec elastic = of_nodes(2);
  elastic.elastic.emplace();
  elastic.max_nodes = 128;
  EXPECT_EQ(shared_memory_bytes(elastic), shared_memory_bytes(of_nodes(128)));
}

}  // namespace
}  // namespace keepstep::agent
