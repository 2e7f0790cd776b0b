// The communicator without Python. Start one process per rank, with a job name that all of them share:
//
//   for rank in 0 1 2; do KEEPSTEP_COMMAND=build/keepstep build/keepstep_example_all_reduce demo $rank 3 & done; wait

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "keepstep/communicator.h"

int fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s JOB RANK WORLD\n", argv[0]);
    return 2;
  }
  keepstep::Communicator::Options options;
  options.job = argv[1];
  options.rank = static_cast<uint32_t>(std::atoi(argv[2]));
  options.world = static_cast<uint32_t>(std::atoi(argv[3]));
  if (const char* command = std::getenv("KEEPSTEP_COMMAND"); command != nullptr) {
    options.command = command;
  }
  auto joined = keepstep::Communicator::join(options);
  if (!joined.ok()) {
    return fail(joined.status());
  }
  keepstep::Communicator& comm = **joined;

  std::vector<float> data(1 << 20, static_cast<float>(comm.rank() + 1));
  if (const absl::Status status = comm.all_reduce(data.data(), data.size(), keepstep::DataType::kFloat32).wait();
      !status.ok()) {
    return fail(status);
  }

  // Around the ring: each rank sends its rank to the next one.
  const uint32_t mine = comm.rank();
  uint32_t theirs = 0;
  keepstep::Work sent = comm.send(&mine, sizeof mine, (comm.rank() + 1) % comm.world());
  keepstep::Work got = comm.receive(&theirs, sizeof theirs, keepstep::Communicator::kAnyRank);
  for (keepstep::Work* work : {&sent, &got}) {
    if (const absl::Status status = work->wait(); !status.ok()) {
      return fail(status);
    }
  }
  std::printf("rank %u of %u: the sum is %g, rank %u sent %u\n", comm.rank(), comm.world(), data[0], got.source(),
              theirs);
  return 0;
}
