#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "brain/reshard/hydration_plan.h"
#include "state/channel.h"
#include "state/hydration.h"
#include "state/peer.h"
#include "state/remote_link.h"
#include "state/shared_link.h"
#include "state/tensor_space.h"
#include "state/transfer.h"

namespace keepstep::state {
namespace {

constexpr uint64_t kDigestGroupBytes = uint64_t{4} << 20;  // entries digested per request, approximately
constexpr uint64_t kLeastShared = uint64_t{4} << 20;       // below this, siblings would take longer to find each other
constexpr uint64_t kSizesAtOnce = kSlotBytes / sizeof(uint64_t);

// A run of entries next to each other: [first, first + count).
struct Run {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;
};

// Copies out of the slot first, so that the checked bytes are the used ones.
bool copy_checked(const Reply& reply, void* out, size_t bytes) {
  std::memcpy(out, reply.bytes, bytes);
  return checksum(out, bytes) == reply.checksum;
}

// One request and its reply, repeated after a bad one. Needs a channel.
Status ask_for(Link& link, const Request& request, void* out, size_t bytes) {
  for (int tries = 0; tries < kMaxTries; ++tries) {
    link.ask(request, link.published().version);
    StatusOr<Reply> reply = link.reply();
    if (!reply.ok() && !absl::IsDataLoss(reply.status())) {
      return reply.status();
    }
    const bool good = reply.ok() && copy_checked(*reply, out, bytes);
    link.done();
    if (good) {
      return absl::OkStatus();
    }
  }
  return absl::UnavailableError(absl::StrFormat("gave a wrong checksum %d times", kMaxTries));
}

// Finds the first entry whose size differs, and names it in the error.
Status explain_other_sizes(Link& link, const TensorSpace& space) {
  KEEPSTEP_RETURN_IF_ERROR(link.take_channel());
  const uint64_t theirs = link.published().entries;
  const uint64_t both = std::min<uint64_t>(theirs, space.entries());
  std::vector<uint64_t> sizes(std::min(both, kSizesAtOnce));
  Status status;
  for (uint64_t first = 0; first < both && status.ok(); first += kSizesAtOnce) {
    const uint64_t count = std::min(both - first, kSizesAtOnce);
    status = ask_for(link, {Kind::kSizes, first, count}, sizes.data(), count * sizeof(uint64_t));
    for (uint64_t i = 0; i < count && status.ok(); ++i) {
      if (sizes[i] != space.bytes(first + i)) {
        status = absl::InvalidArgumentError(
            absl::StrFormat("entry %d has %d bytes here and %d bytes at the source; all ranks must protect the same "
                            "tensors in the same order",
                            first + i, space.bytes(first + i), sizes[i]));
      }
    }
  }
  link.give_back();
  KEEPSTEP_RETURN_IF_ERROR(status);
  return absl::InvalidArgumentError(
      absl::StrFormat("entry %d exists on one side only: %d entries here and %d at the source; all ranks must protect "
                      "the same tensors in the same order",
                      both, space.entries(), theirs));
}

// Runs of entries for which `wanted` holds, each cut when it reaches `enough` bytes or fills a request for digests.
template <typename Wanted>
std::vector<Run> runs_of(const TensorSpace& space, uint64_t enough, Wanted wanted) {
  std::vector<Run> runs;
  bool open = false;
  for (uint64_t entry = 0; entry < space.entries(); ++entry) {
    if (space.bytes(entry) > 0) {
      const bool take = wanted(entry);
      if (take && !open) {
        runs.push_back({entry, 0, 0});
      }
      open = take;
    }
    if (open) {  // entries without bytes neither begin a run nor end one
      ++runs.back().count;
      runs.back().bytes += space.bytes(entry);
      open = runs.back().bytes < enough && runs.back().count < kSizesAtOnce;
    }
  }
  return runs;
}

// A range of the space.
struct Span {
  uint64_t start = 0;
  uint64_t bytes = 0;
};

// Share number `index` of `count`, in whole chunks.
Span share_of(uint64_t total, size_t index, size_t count) {
  const uint64_t chunks = (total + kSlotBytes - 1) / kSlotBytes;
  const auto border = [&](size_t number) { return std::min(total, chunks * number / count * kSlotBytes); };
  return {border(index), border(index + 1) - border(index)};
}

std::vector<brain::PlanEntry> plan_entries(const std::vector<Run>& runs) {
  std::vector<brain::PlanEntry> entries;
  for (const Run& run : runs) {
    entries.push_back({run.bytes, true});
  }
  return entries;
}

}  // namespace

struct Puller::Impl {
  Status check_sizes(Link& link, const TensorSpace& space) const;
  Status find_differing(Transfer& transfer, const TensorSpace& space, std::vector<uint8_t>& differs);
  Status pull_wanted(Transfer& transfer, const TensorSpace& space, const std::vector<uint8_t>& wanted);
  StatusOr<std::string> read_manifest(Link& link);
  std::vector<uint32_t> nearest() const;
  std::vector<brain::PlanRange> plan(const std::vector<brain::PlanEntry>& entries, uint64_t chunk_bytes) const;
  using OffsetOf = std::function<uint64_t(const brain::PlanRange&)>;
  Transfer::Work data_work(const TensorSpace& space, const OffsetOf& offset_of) const;
  Status pull_shared(const Sharing& sharing, const TensorSpace& space, brain::Identity identity, brain::Version version,
                     Pulled& pulled);
  Status pull_from_sibling(std::byte* region, const TensorSpace& space, brain::Identity identity,
                           brain::Version version, const Span& span, std::vector<uint64_t>& bytes_by_link,
                           uint64_t& repeated);
  std::vector<Link*> all_links() const;

  uint32_t self = 0;
  DeviceCopy* copy = nullptr;
  std::vector<std::unique_ptr<Link>> links;
};

Puller::Puller(const std::vector<SourceAccess>& sources, uint32_t self, DeviceCopy& copy,
               const std::atomic<uint32_t>* interrupted)
    : impl_(std::make_unique<Impl>()) {
  impl_->self = self;
  impl_->copy = &copy;
  for (const SourceAccess& source : sources) {
    if (source.region != nullptr) {
      impl_->links.push_back(std::make_unique<SharedLink>(source.region, self, interrupted));
    } else {
      impl_->links.push_back(std::make_unique<RemoteLink>(*source.peer, interrupted));
    }
  }
}

Puller::~Puller() = default;

// The sources on this node; all of them if there are none.
std::vector<uint32_t> Puller::Impl::nearest() const {
  std::vector<uint32_t> near;
  std::vector<uint32_t> all;
  for (uint32_t source = 0; source < links.size(); ++source) {
    all.push_back(source);
    if (links[source]->is_near()) {
      near.push_back(source);
    }
  }
  return near.empty() ? all : near;
}

// A plan over the nearest sources; the others supply only what these cannot.
std::vector<brain::PlanRange> Puller::Impl::plan(const std::vector<brain::PlanEntry>& entries,
                                                 uint64_t chunk_bytes) const {
  const std::vector<uint32_t> sources = nearest();
  const auto count = static_cast<uint32_t>(sources.size());
  std::vector<brain::PlanRange> ranges = brain::plan_hydration(entries, count, chunk_bytes, self % count);
  for (brain::PlanRange& range : ranges) {
    range.source = sources[range.source];
  }
  return ranges;
}

StatusOr<std::string> Puller::Impl::read_manifest(Link& link) {
  const uint64_t total = link.published().manifest_bytes;
  if (total > kMaxManifestBytes) {
    return absl::UnavailableError(absl::StrFormat("has a manifest of %d bytes", total));
  }
  KEEPSTEP_RETURN_IF_ERROR(link.take_channel());
  std::string manifest(total, '\0');
  Status status;
  for (uint64_t at = 0; at < total && status.ok(); at += kSlotBytes) {
    const uint64_t bytes = std::min<uint64_t>(total - at, kSlotBytes);
    status = ask_for(link, {Kind::kManifest, at, bytes}, manifest.data() + at, bytes);
  }
  link.give_back();
  KEEPSTEP_RETURN_IF_ERROR(status);
  return manifest;
}

StatusOr<std::string> Puller::manifest(brain::Identity identity) {
  auto& links = impl_->links;
  std::vector<std::string> lost(links.size());
  const auto near_is_left = [&] {
    for (size_t i = 0; i < links.size(); ++i) {
      if (links[i]->is_near() && lost[i].empty()) {
        return true;
      }
    }
    return false;
  };
  for (size_t turn = impl_->self;; ++turn) {
    if (std::all_of(lost.begin(), lost.end(), [](const std::string& why) { return !why.empty(); })) {
      std::string reasons;
      for (size_t i = 0; i < lost.size(); ++i) {
        reasons += absl::StrFormat("%s source %d %s", i == 0 ? "" : ";", i, lost[i]);
      }
      return absl::DataLossError("no source is left to read the manifest from:" + reasons);
    }
    const size_t index = turn % links.size();
    Link& link = *links[index];
    if (!lost[index].empty() || (!link.is_near() && near_is_left())) {
      continue;
    }
    if (link.is_interrupted()) {
      return absl::AbortedError("the generation was interrupted");
    }
    const StatusOr<bool> published = link.look(identity);
    if (published.ok() && !*published) {
      link.nap_until_published();
      continue;
    }
    StatusOr<std::string> manifest = published.ok() ? impl_->read_manifest(link) : published.status();
    if (!absl::IsUnavailable(manifest.status())) {
      return manifest;
    }
    lost[index] = std::string(manifest.status().message());
  }
}

Status Puller::Impl::check_sizes(Link& link, const TensorSpace& space) const {
  const Published& source = link.published();
  if (source.entries == space.entries() && source.total_bytes == space.total_bytes() &&
      source.sizes_checksum == space.sizes_checksum()) {
    return absl::OkStatus();
  }
  return explain_other_sizes(link, space);
}

// Asks for the sources' digests, groups of entries from each, and computes our own meanwhile.
Status Puller::Impl::find_differing(Transfer& transfer, const TensorSpace& space, std::vector<uint8_t>& differs) {
  const std::vector<Run> groups = runs_of(space, kDigestGroupBytes, [](uint64_t /*entry*/) { return true; });
  if (groups.empty()) {
    return absl::OkStatus();
  }
  const Transfer::Work work{
      .check_source = [&](Link& link) { return check_sizes(link, space); },
      .request =
          [&](const brain::PlanRange& range) {
            return Request{Kind::kDigests, groups[range.entry].first, groups[range.entry].count};
          },
      .consume =
          [&](const brain::PlanRange& range, const Reply& reply) {
            const Run& group = groups[range.entry];
            std::vector<uint64_t> theirs(group.count);
            if (!copy_checked(reply, theirs.data(), group.count * sizeof(uint64_t))) {
              return false;
            }
            for (uint64_t i = 0; i < group.count; ++i) {
              const uint64_t ours =
                  space.digest(*copy, group.first + i, [&] { return links.front()->is_interrupted(); });
              differs[group.first + i] = ours != theirs[i] ? 1 : 0;
            }
            return true;
          },
      .describe =
          [&](const brain::PlanRange& range) {
            const Run& group = groups[range.entry];
            return absl::StrFormat("the digests of entries %d to %d", group.first, group.first + group.count - 1);
          },
  };
  // A group is never cut: its range is the group.
  return transfer.run(plan(plan_entries(groups), space.total_bytes()), work);
}

Status Puller::Impl::pull_wanted(Transfer& transfer, const TensorSpace& space, const std::vector<uint8_t>& wanted) {
  std::vector<Run> runs =
      runs_of(space, std::numeric_limits<uint64_t>::max(), [&](uint64_t entry) { return wanted[entry] != 0; });
  std::vector<brain::PlanRange> ranges = plan(plan_entries(runs), kSlotBytes);
  if (space.total_bytes() == 0) {
    // One empty request, so that identity, version and sizes are checked anyway.
    runs = {Run{}};
    ranges = {{0, 0, 0, nearest()[self % nearest().size()]}};
  }
  return transfer.run(ranges, data_work(space, [&](const brain::PlanRange& range) {
                        return space.start(runs[range.entry].first) + range.offset;
                      }));
}

Transfer::Work Puller::Impl::data_work(const TensorSpace& space, const OffsetOf& offset_of) const {
  return {
      .check_source = [this, &space](Link& link) { return check_sizes(link, space); },
      .request =
          [offset_of](const brain::PlanRange& range) { return Request{Kind::kData, offset_of(range), range.bytes}; },
      .consume =
          [this, &space, offset_of](const brain::PlanRange& range, const Reply& reply) {
            return space.write(*copy, offset_of(range), range.bytes, reply.bytes) == reply.checksum;
          },
      .describe = [&space,
                   offset_of](const brain::PlanRange& range) { return space.describe(offset_of(range), range.bytes); },
  };
}

std::vector<Link*> Puller::Impl::all_links() const {
  std::vector<Link*> all;
  for (const std::unique_ptr<Link>& link : links) {
    all.push_back(link.get());
  }
  return all;
}

// Our share from the sources, then each sibling's share from that sibling.
Status Puller::Impl::pull_shared(const Sharing& sharing, const TensorSpace& space, brain::Identity identity,
                                 brain::Version version, Pulled& pulled) {
  const size_t count = sharing.siblings.size();
  const auto own = static_cast<size_t>(std::find(sharing.siblings.begin(), sharing.siblings.end(), nullptr) -
                                       sharing.siblings.begin());
  KEEPSTEP_CHECK(own < count, "a target shares with itself among others");
  pulled.bytes_by_source.assign(links.size() + count - 1, 0);
  const Span span = share_of(space.total_bytes(), own, count);
  Transfer transfer(all_links(), identity, version);
  KEEPSTEP_RETURN_IF_ERROR(
      transfer.run(plan({{span.bytes, true}}, kSlotBytes),
                   data_work(space, [&](const brain::PlanRange& range) { return span.start + range.offset; })));
  for (size_t source = 0; source < links.size(); ++source) {
    pulled.bytes_by_source[source] = transfer.bytes_by_source()[source];
  }
  pulled.chunks_repeated = transfer.repeated();
  KEEPSTEP_RETURN_IF_ERROR(sharing.publish());
  for (size_t step = 1; step < count; ++step) {  // starting with a different sibling on each target
    const size_t sibling = (own + step) % count;
    std::vector<uint64_t> bytes;
    KEEPSTEP_RETURN_IF_ERROR(pull_from_sibling(sharing.siblings[sibling], space, identity, version,
                                               share_of(space.total_bytes(), sibling, count), bytes,
                                               pulled.chunks_repeated));
    pulled.bytes_by_source[links.size() + sibling - (sibling > own ? 1 : 0)] = bytes.front();
    for (size_t source = 0; source < links.size(); ++source) {
      pulled.bytes_by_source[source] += bytes[source + 1];
    }
  }
  return absl::OkStatus();
}

Status Puller::Impl::pull_from_sibling(std::byte* region, const TensorSpace& space, brain::Identity identity,
                                       brain::Version version, const Span& span, std::vector<uint64_t>& bytes_by_link,
                                       uint64_t& repeated) {
  SharedLink link(region, self, links.front()->interrupted_word());
  // Its share takes as long as ours, and longer if its sources are slower: the target that waits here is not the late
  // one. If the sibling died, the generation is interrupted.
  while (true) {
    const StatusOr<bool> published = link.look(identity);
    if (!published.ok() || *published) {
      break;  // the transfer sees an error, too, and continues with the sources
    }
    if (link.is_interrupted()) {
      return absl::AbortedError("the generation was interrupted");
    }
    link.nap_until_published();
  }
  std::vector<Link*> with_sources = all_links();
  with_sources.insert(with_sources.begin(), &link);
  Transfer transfer(with_sources, identity, version);
  KEEPSTEP_RETURN_IF_ERROR(
      transfer.run(brain::plan_hydration({{span.bytes, true}}, 1, kSlotBytes),
                   data_work(space, [&](const brain::PlanRange& range) { return span.start + range.offset; })));
  bytes_by_link = transfer.bytes_by_source();
  repeated += transfer.repeated();
  return absl::OkStatus();
}

StatusOr<Pulled> Puller::pull(brain::Identity identity, brain::Version version, const std::vector<Region>& regions,
                              bool compare, const Sharing* sharing) {
  const int64_t start_ns = monotonic_ns();
  KEEPSTEP_ASSIGN_OR_RETURN(const TensorSpace space, TensorSpace::create(regions));
  KEEPSTEP_RETURN_IF_ERROR(space.open_devices(*impl_->copy));
  if (impl_->links.empty()) {
    return absl::DataLossError("there is no source to pull from");
  }
  Pulled pulled;
  if (sharing != nullptr && space.total_bytes() >= kLeastShared) {
    KEEPSTEP_CHECK(!compare, "who compares does not share");
    KEEPSTEP_RETURN_IF_ERROR(impl_->pull_shared(*sharing, space, identity, version, pulled));
    pulled.bytes = space.total_bytes();
    pulled.duration_ns = monotonic_ns() - start_ns;
    return pulled;
  }
  Transfer transfer(impl_->all_links(), identity, version);
  std::vector<uint8_t> wanted(space.entries(), 1);
  if (compare) {
    KEEPSTEP_RETURN_IF_ERROR(impl_->find_differing(transfer, space, wanted));
  }
  const std::vector<uint64_t> digested = transfer.bytes_by_source();
  KEEPSTEP_RETURN_IF_ERROR(impl_->pull_wanted(transfer, space, wanted));
  for (size_t source = 0; source < impl_->links.size(); ++source) {
    pulled.bytes_by_source.push_back(transfer.bytes_by_source()[source] - digested[source]);
    pulled.bytes += pulled.bytes_by_source.back();
  }
  pulled.bytes_skipped = space.total_bytes() - pulled.bytes;
  if (sharing != nullptr) {
    pulled.bytes_by_source.resize(impl_->links.size() + sharing->siblings.size() - 1);
  }
  pulled.chunks_repeated = transfer.repeated();
  pulled.duration_ns = monotonic_ns() - start_ns;
  return pulled;
}

}  // namespace keepstep::state
