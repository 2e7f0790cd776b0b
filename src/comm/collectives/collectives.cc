#include "comm/collectives/collectives.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "comm/collectives/agreement.h"
#include "comm/collectives/canonical_reduce.h"
#include "comm/collectives/collective_run.h"
#include "comm/collectives/hierarchical.h"
#include "comm/numbers/float_environment.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {
namespace {

// Up to this size every rank adds everything itself: one meeting instead of two.
constexpr size_t kSmallBytes = 8 << 10;

class Run final : public CollectiveRun {
 public:
  using CollectiveRun::CollectiveRun;

 private:
  void carry_out() override { size() == 1 ? alone() : CollectiveRun::carry_out(); }
  void barrier() override { meet(); }
  void reduce(bool to_all) override;
  void broadcast() override;
  void gather(bool to_all) override { gather_here(to_all || is_root()); }
  void scatter() override { scatter_here(); }
  void reduce_scatter() override;
  void all_to_all() override;
  void all_reduce_canonical() override;

  void alone();
  void reduce_small(bool to_all);
  void reduce_large(bool to_all);
  bool agree_on_sizes(size_t* most);
};

void Run::reduce(bool to_all) {
  const bool small = operation_.bytes <= std::min(kSmallBytes, group_.slot_bytes);
  small ? reduce_small(to_all) : reduce_large(to_all);
}

void Run::reduce_small(bool to_all) {
  copy_bytes(own_input(), operation_.data, operation_.bytes);
  if (meet() && (to_all || is_root())) {
    add_up(operation_.data, operation_.bytes, [&](size_t member) { return input_of(member); });
  }
}

// Meeting m shares the inputs of chunk m and the reduced parts of chunk m-1.
void Run::reduce_large(bool to_all) {
  const size_t chunk_bytes = group_.slot_bytes;
  const size_t chunks = (operation_.bytes + chunk_bytes - 1) / chunk_bytes;
  const auto bytes_of = [&](size_t chunk) { return std::min(chunk_bytes, operation_.bytes - chunk * chunk_bytes); };
  const auto share_inputs = [&](size_t chunk) {  // all but our own part, which nobody else reads
    const std::byte* data = operation_.data + chunk * chunk_bytes;
    const Slice own = slice_of(bytes_of(chunk), size(), self());
    copy_bytes(own_input(), data, own.begin);
    copy_bytes(own_input() + own.end, data + own.end, bytes_of(chunk) - own.end);
  };
  const auto take_results = [&](size_t chunk) {
    for (size_t i = 0; i < size() && (to_all || is_root()); ++i) {
      const size_t member = (self() + i) % size();  // not all from the same rank at once
      const Slice part = slice_of(bytes_of(chunk), size(), member);
      copy_bytes(operation_.data + chunk * chunk_bytes + part.begin, result_of(member) + part.begin, part.bytes());
    }
  };
  share_inputs(0);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!meet()) {
      return;
    }
    const Slice own = slice_of(bytes_of(chunk), size(), self());
    add_up(own_result() + own.begin, own.bytes(), [&](size_t member) {
      return (member == self() ? operation_.data + chunk * chunk_bytes : input_of(member)) + own.begin;
    });
    if (chunk + 1 < chunks) {
      share_inputs(chunk + 1);
    }
    if (chunk > 0) {
      take_results(chunk - 1);
    }
  }
  if (meet()) {
    take_results(chunks - 1);
  }
}

void Run::broadcast() {
  size_t done = 0;
  do {
    const size_t n = std::min(group_.slot_bytes, operation_.bytes - done);
    if (is_root()) {
      copy_bytes(own_input(), operation_.data + done, n);
    }
    if (!meet()) {
      return;
    }
    if (!is_root()) {
      copy_bytes(operation_.data + done, input_of(operation_.root), n);
    }
    done += n;
  } while (done < operation_.bytes);
}

void Run::reduce_scatter() {
  size_t done = 0;
  do {
    const size_t n = std::min(share_bytes(), operation_.bytes - done);
    for (size_t member = 0; member < size(); ++member) {
      copy_bytes(own_input() + member * share_bytes(), operation_.inputs[member] + done, n);
    }
    if (!meet()) {
      return;
    }
    add_up(operation_.outputs[0] + done, n, [&](size_t member) { return input_of(member) + self() * share_bytes(); });
    done += n;
  } while (done < operation_.bytes);
}

// Shares all sizes first: the ranks must know how many meetings there will be, and that the sizes fit.
bool Run::agree_on_sizes(size_t* most) {
  const size_t n = size();
  auto* own = reinterpret_cast<uint64_t*>(own_input());
  std::copy(operation_.input_bytes.begin(), operation_.input_bytes.end(), own);
  std::copy(operation_.output_bytes.begin(), operation_.output_bytes.end(), own + n);
  if (!meet()) {
    return false;
  }
  const auto sizes_of = [&](size_t member) { return reinterpret_cast<const uint64_t*>(input_of(member)); };
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const uint64_t given = sizes_of(from)[to];
      const uint64_t expected = sizes_of(to)[n + from];
      if (given != expected) {
        return fail(absl::StrFormat("rank %d sends %d bytes to rank %d, which expects %d", group_.members[from], given,
                                    group_.members[to], expected));
      }
      *most = std::max<size_t>(*most, given);
    }
  }
  return true;
}

void Run::all_to_all() {
  size_t most = 0;
  if (agree_on_sizes(&most)) {
    exchange_here(most);
  }
}

void Run::all_reduce_canonical() { canonical_all_reduce(*this, group_, operation_); }

void Run::alone() {
  if (!refused_.empty()) {
    fail(refused_);
    return;
  }
  switch (operation_.kind) {
    case Kind::kAllGather:
    case Kind::kGather:
    case Kind::kScatter:
    case Kind::kReduceScatter:
      return copy_bytes(operation_.outputs[0], operation_.inputs[0], operation_.bytes);
    case Kind::kAllToAll:
      if (operation_.input_bytes[0] != operation_.output_bytes[0]) {
        fail(absl::StrFormat("it sends %d bytes to itself and expects %d", operation_.input_bytes[0],
                             operation_.output_bytes[0]));
        return;
      }
      return copy_bytes(operation_.outputs[0], operation_.inputs[0], operation_.input_bytes[0]);
    case Kind::kAllReduceCanonical:
      return all_reduce_canonical();
    default:
      return;
  }
}

}  // namespace

Result run_collective(Group& group, const Operation& operation) {
  ++group.entered;
  const DefaultFloats floats;
  const std::string refused = why_refused(group, operation);
  Result result =
      group.nodes.across() ? HierarchicalRun(group, operation, refused).all() : Run(group, operation, refused).all();
  // Once interrupted, a peer may already write its arena for the next generation: what we read last may be torn.
  if (result.outcome == Outcome::kDone && group.sync.interrupted()) {
    result.outcome = Outcome::kInterrupted;
  }
  if (result.outcome == Outcome::kInterrupted && refused.empty()) {
    zero_outputs(operation);
  }
  return result;
}

}  // namespace keepstep::comm
