// Sums across nodes: a chain over the nodes, in rank order for each element, pipelined chunk by chunk.

#include <algorithm>
#include <cstring>

#include "comm/collectives/hierarchical.h"
#include "comm/numbers/partial.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {
namespace {

constexpr size_t kAhead = 4;                    // partial sums under way at a time, each way
constexpr size_t kDepthOfNode = 4;              // chunks between input and result, for each node further on
constexpr size_t kMaxChunkBytes = 512 << 10;    // per driver: a core's cache holds what is added
constexpr size_t kLeastChunkBytes = 128 << 10;  // below it what a chunk costs anyway outweighs the overlap
constexpr size_t kChunksOfOne = 8;              // so many chunks at least, where they are large enough
constexpr size_t kMaxResultBytes = 16 << 20;    // of results that a node passes on, per driver

}  // namespace

// What a driver holds while it works on its slices.
struct HierarchicalRun::Driving {
  // By chunk modulo kAhead.
  std::vector<std::byte> partial_in[kAhead];
  std::vector<std::byte> partial_out[kAhead];
  PartRequest taking[kAhead];
  PartRequest passing[kAhead];
  // By chunk modulo their number.
  std::vector<std::vector<std::byte>> results;  // where the operation has no place for them
  std::vector<PartRequest> results_in;
  std::vector<PartRequest> results_out;
  size_t depth = 0;  // chunks between a chunk's input and its result
};

// Chunks are whole cache lines, so that no element is cut.
size_t HierarchicalRun::chunk_bytes(size_t total) const {
  const size_t depth = kDepthOfNode * map_.nodes();
  const size_t bounded = std::min(group_.slot_bytes, std::min(kMaxChunkBytes, kMaxResultBytes / depth) * drivers_);
  const size_t wanted = std::max(kLeastChunkBytes, total / kChunksOfOne);
  return std::max<size_t>(std::min(wanted, bounded) / kCacheLine * kCacheLine, kCacheLine);
}

// Takes what came from the node before, adds ours, passes it on; on the last node that is the result.
bool HierarchicalRun::drive_chunk(const Chain& chain, Driving& driving, size_t chunk) {
  const bool first = map_.node == 0;
  const bool last = map_.node + 1 == map_.nodes();
  const Slice slice = slice_of(chain.bytes(chunk), map_.local);
  if (slice.bytes() == 0) {
    return true;
  }
  const size_t i = chunk % kAhead;
  if (!first && !wait(driving.taking[i])) {
    return false;
  }
  std::vector<const std::byte*> sources;
  for (const size_t member : map_.here()) {
    sources.push_back(member == self() ? chain.own(chunk, slice) : input_of(member) + slice.begin);
  }
  const size_t count = slice.bytes() / size_of(operation_.type);
  const size_t wire_bytes = count * partial_size(operation_.type);
  const std::byte* before = first ? nullptr : driving.partial_in[i].data();
  const size_t r = chunk % driving.results_out.size();
  std::byte* place = chain.place(chunk, slice);
  if (place == nullptr) {
    driving.results[r].resize(std::max(driving.results[r].size(), slice.bytes()));
    place = driving.results[r].data();
  }
  const bool has_results = map_.node >= chain.root_node;
  if (last) {
    finish_partial(place, before, sources.data(), sources.size(), count, operation_.type, operation_.op, size());
    if (map_.node > chain.root_node) {
      parts_.send(driving.results_out[r], rank_of(counterpart(map_.node - 1)), key(Stage::kUp, chunk),
                  {place, slice.bytes()});
    }
  } else {
    if (chunk >= kAhead && !wait(driving.passing[i])) {
      return false;
    }
    const std::byte* out = sources[0];
    if (!(first && sources.size() == 1 && chain.inputs_stay && wire_bytes == slice.bytes())) {
      driving.partial_out[i].resize(std::max(driving.partial_out[i].size(), wire_bytes));
      out = driving.partial_out[i].data();
      add_partial(driving.partial_out[i].data(), before, sources.data(), sources.size(), count, operation_.type,
                  operation_.op);
    }
    const Rank next = rank_of(counterpart(map_.node + 1));
    if (has_results) {  // after our input was read: the result may come to the same place
      parts_.receive(driving.results_in[r], next, key(Stage::kUp, chunk), {place, slice.bytes()});
    }
    parts_.send(driving.passing[i], next, key(Stage::kDown, chunk), {out, wire_bytes});
  }
  return true;
}

// Waits for the result of a chunk, passes it on to the node before and shows it to the members on ours.
bool HierarchicalRun::bring_result(const Chain& chain, Driving& driving, size_t chunk) {
  const bool last = map_.node + 1 == map_.nodes();
  const Slice slice = slice_of(chain.bytes(chunk), map_.local);
  if (slice.bytes() == 0) {
    return true;
  }
  const size_t r = chunk % driving.results_in.size();
  std::byte* place = chain.place(chunk, slice);
  if (place == nullptr) {
    place = driving.results[r].data();
  }
  if (!last) {
    if (!wait(driving.results_in[r])) {
      return false;
    }
    if (map_.node > chain.root_node) {
      parts_.send(driving.results_out[r], rank_of(counterpart(map_.node - 1)), key(Stage::kUp, chunk),
                  {place, slice.bytes()});
    }
  }
  if (local_size() > 1) {
    copy_bytes(own_result() + slice.begin, place, slice.bytes());
  }
  chain.take(chunk, slice, place);
  return true;
}

void HierarchicalRun::run_chain(const Chain& chain) {
  const bool first = map_.node == 0;
  const bool last = map_.node + 1 == map_.nodes();
  const bool has_results = map_.node >= chain.root_node;
  const size_t depth = !has_results ? 0 : last ? 1 : 1 + kDepthOfNode * (map_.nodes() - 1 - map_.node);
  Driving driving;
  driving.results_in.resize(depth + 1);
  driving.results_out.resize(depth + 1);
  driving.results.resize(depth + 1);
  const auto expect_partial = [&](size_t chunk) {
    if (first || !drives() || chunk >= chain.chunks) {
      return;
    }
    const Slice slice = slice_of(chain.bytes(chunk), map_.local);
    if (slice.bytes() == 0) {
      return;
    }
    std::vector<std::byte>& buffer = driving.partial_in[chunk % kAhead];
    const size_t wire_bytes = slice.bytes() / size_of(operation_.type) * partial_size(operation_.type);
    buffer.resize(std::max(buffer.size(), wire_bytes));
    parts_.receive(driving.taking[chunk % kAhead], rank_of(counterpart(map_.node - 1)), key(Stage::kDown, chunk),
                   {buffer.data(), wire_bytes});
  };
  for (size_t chunk = 0; chunk < kAhead; ++chunk) {
    expect_partial(chunk);
  }
  for (size_t m = 0; m < chain.chunks + depth; ++m) {
    if (has_results && m >= depth && drives() && !bring_result(chain, driving, m - depth)) {
      return;
    }
    if (m < chain.chunks && local_size() > 1) {
      chain.share(m, own_input());
    }
    if (local_size() > 1 && !meet()) {
      return;
    }
    if (has_results && m >= depth) {
      const size_t chunk = m - depth;
      for (size_t i = 1; i < local_size() + 1; ++i) {
        const size_t driver = (map_.local + i) % local_size();  // not all from the same one at once
        if (driver < drivers_ && driver != map_.local) {
          const Slice slice = slice_of(chain.bytes(chunk), driver);
          if (slice.bytes() > 0) {
            chain.take(chunk, slice, result_of(map_.here()[driver]) + slice.begin);
          }
        }
      }
    }
    if (m < chain.chunks && drives()) {
      const size_t r = m % driving.results_out.size();
      if (!wait_sent({&driving.results_out[r], 1})) {
        return;  // the place of that result is used again now
      }
      if (!drive_chunk(chain, driving, m)) {
        return;
      }
      expect_partial(m + kAhead);
    }
  }
  // Until nobody reads our buffers any more.
  if (wait_sent(driving.passing)) {
    wait_sent(driving.results_out);
  }
}

void HierarchicalRun::reduce(bool to_all) {
  const bool takes = to_all || is_root();
  if (operation_.bytes <= max_payload()) {
    if (agree(Stage::kAgreement, operation_.data, operation_.bytes) && takes) {
      add_up(operation_.data, operation_.bytes, [&](size_t member) { return payload(member); });
    }
    return;
  }
  if (!agree(Stage::kAgreement, nullptr, 0)) {
    return;
  }
  if (!map_.contiguous) {
    return reduce_by_gathering(to_all);
  }
  const size_t chunk_size = chunk_bytes(operation_.bytes);
  Chain chain;
  chain.chunks = (operation_.bytes + chunk_size - 1) / chunk_size;
  chain.root_node = to_all ? 0 : map_.node_of(operation_.root);
  chain.bytes = [&, chunk_size](size_t chunk) { return std::min(chunk_size, operation_.bytes - chunk * chunk_size); };
  const auto data_of = [&, chunk_size](size_t chunk) { return operation_.data + chunk * chunk_size; };
  chain.share = [&](size_t chunk, std::byte* slot) {  // all but our own slice, which nobody else reads
    const size_t bytes = chain.bytes(chunk);
    const Slice own = drives() ? slice_of(bytes, map_.local) : Slice{bytes, bytes};
    copy_bytes(slot, data_of(chunk), own.begin);
    copy_bytes(slot + own.end, data_of(chunk) + own.end, bytes - own.end);
  };
  chain.own = [&](size_t chunk, const Slice& slice) { return data_of(chunk) + slice.begin; };
  chain.place = [&](size_t chunk, const Slice& slice) { return takes ? data_of(chunk) + slice.begin : nullptr; };
  chain.take = [&](size_t chunk, const Slice& slice, const std::byte* result) {
    if (takes) {
      copy_bytes(data_of(chunk) + slice.begin, result, slice.bytes());
    }
  };
  run_chain(chain);
}

// The inputs for all members follow each other in a chunk: a sum over all, of which each takes what is its own.
void HierarchicalRun::reduce_scatter() {
  const size_t bytes = operation_.bytes;
  const size_t n = size();
  if (n * bytes <= max_payload()) {
    std::vector<std::byte> packed(n * bytes);
    for (size_t member = 0; member < n; ++member) {
      copy_bytes(packed.data() + member * bytes, operation_.inputs[member], bytes);
    }
    if (agree(Stage::kAgreement, packed.data(), packed.size())) {
      add_up(operation_.outputs[0], bytes, [&](size_t member) { return payload(member) + self() * bytes; });
    }
    return;
  }
  if (!agree(Stage::kAgreement, nullptr, 0)) {
    return;
  }
  const size_t share = chunk_bytes(n * bytes) / n / kCacheLine * kCacheLine;
  if (!map_.contiguous || share == 0) {
    return reduce_by_gathering(true);
  }
  std::vector<std::byte> alone(local_size() == 1 ? share * n : 0);
  const auto share_of = [&](size_t chunk) { return std::min(share, bytes - chunk * share); };
  const std::byte* shared = nullptr;  // where our input of the current chunk is
  Chain chain;
  chain.chunks = (bytes + share - 1) / share;
  chain.inputs_stay = false;
  chain.bytes = [&](size_t chunk) { return share_of(chunk) * n; };
  chain.share = [&](size_t chunk, std::byte* slot) {
    for (size_t member = 0; member < n; ++member) {
      copy_bytes(slot + member * share_of(chunk), operation_.inputs[member] + chunk * share, share_of(chunk));
    }
    shared = slot;
  };
  chain.own = [&](size_t chunk, const Slice& slice) {
    if (local_size() == 1) {  // nobody to share with, so nobody asked us to
      chain.share(chunk, alone.data());
    }
    return shared + slice.begin;
  };
  chain.place = [](size_t, const Slice&) -> std::byte* { return nullptr; };
  chain.take = [&](size_t chunk, const Slice& slice, const std::byte* result) {
    const size_t begin = std::max(slice.begin, self() * share_of(chunk));
    const size_t end = std::min(slice.end, (self() + 1) * share_of(chunk));
    if (begin < end) {
      copy_bytes(operation_.outputs[0] + chunk * share + (begin - self() * share_of(chunk)),
                 result + (begin - slice.begin), end - begin);
    }
  };
  run_chain(chain);
}

// Where the members of a node do not follow each other, no chain of nodes has the right order: everyone gets all inputs
// and adds for itself.
void HierarchicalRun::reduce_by_gathering(bool to_all) {
  const bool scatters = operation_.kind == Kind::kReduceScatter;
  const size_t element = size_of(operation_.type);
  const size_t step = gather_bytes() / element * element;
  std::vector<std::byte> inputs(size() * step);
  size_t round = 0;
  for (size_t target = 0; target < (scatters ? size() : 1); ++target) {
    const std::byte* own = scatters ? operation_.inputs[target] : operation_.data;
    const bool takes = scatters ? target == self() : to_all || is_root();
    for (size_t done = 0; done < operation_.bytes; done += step) {
      const size_t n = std::min(step, operation_.bytes - done);
      std::vector<const std::byte*> sources(size());
      const auto visit = [&](size_t member, const std::byte* block) {
        if (takes) {
          copy_bytes(inputs.data() + member * step, block, n);
          sources[member] = inputs.data() + member * step;
        }
      };
      if (!gather_round(round++, own + done, n, visit)) {
        return;
      }
      if (takes) {
        reduce_in_order((scatters ? operation_.outputs[0] : operation_.data) + done, sources.data(), size(),
                        n / element, operation_.type, operation_.op);
      }
    }
  }
}

}  // namespace keepstep::comm
