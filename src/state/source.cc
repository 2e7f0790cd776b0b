#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "base/futex.h"
#include "base/short_turns.h"
#include "state/channel.h"
#include "state/hydration.h"
#include "state/tensor_space.h"

namespace keepstep::state {

size_t region_bytes() { return sizeof(Board); }

struct Source::Impl {
  Impl(std::byte* region, DeviceCopy& device_copy, const std::atomic<uint32_t>* interrupted_word)
      : board(board_at(region)), copy(device_copy), interrupted(interrupted_word) {}

  bool is_interrupted() const { return interrupted != nullptr && interrupted->load(std::memory_order_acquire) != 0; }
  bool should_stop() const { return stopping.load(std::memory_order_acquire) || is_interrupted(); }

  void reset_board();
  void withdraw();
  void serve();
  bool serve_one_each();
  void answer(uint32_t channel, uint32_t number);
  ReplyCode fill(const Slot& slot, const Request& request, std::byte* out, uint64_t* sum);
  void digests(const Request& request, std::byte* out);

  Board& board;
  DeviceCopy& copy;
  const std::atomic<uint32_t>* interrupted;

  // What is published; belongs to the thread while it runs.
  uint64_t identity = 0;
  brain::Version version = 0;
  std::string manifest;
  TensorSpace space;
  std::vector<uint64_t> digest_of;  // by entry, valid where digest_known
  std::vector<bool> digest_known;
  std::array<uint32_t, kChannels + 1> served{};  // number of the last answered request, by channel

  std::atomic<uint64_t> bytes_served{0};
  std::atomic<bool> stopping{false};
  std::thread thread;
};

// Why this is safe although targets may be looking: publish() is called while nothing is published, so `edition` is
// even, and a target of an older identity stops at its next look at `edition`. Its process was either fenced (its exit
// is confirmed) or interrupted, which ended its pull before it could join the new generation. Should a late write of
// such a target arrive here anyway, it carries the old identity and is refused; a newer target whose request it
// overwrote finds another offset in the reply, or a wrong checksum, and asks again.
void Source::Impl::reset_board() {
  for (Channel& channel : board.channels) {
    channel.asked.store(0, std::memory_order_relaxed);
    channel.answered.store(0, std::memory_order_relaxed);
    channel.target_sleeps.store(0, std::memory_order_relaxed);
    for (Slot& slot : channel.slots) {
      slot.identity.store(0, std::memory_order_relaxed);
    }
    channel.owner.store(0, std::memory_order_release);
  }
  served.fill(0);
}

void Source::Impl::withdraw() {
  const uint32_t edition = board.header.edition.load(std::memory_order_acquire);
  if (is_published(edition)) {
    board.header.interrupted.store(is_interrupted() ? 1 : 0, std::memory_order_relaxed);
    board.header.edition.store(edition + 1, std::memory_order_release);
  }
  futex_wake_all(board.header.edition);
  for (Channel& channel : board.channels) {
    futex_wake_all(channel.answered);
  }
  futex_wake_all(board.header.given_back);
}

void Source::Impl::serve() {
  take_short_turns();
  Header& header = board.header;
  while (!should_stop()) {
    const uint32_t bell = header.bell.load(std::memory_order_seq_cst);
    if (serve_one_each()) {
      continue;
    }
    header.source_sleeps.store(1, std::memory_order_seq_cst);
    futex_wait(header.bell, bell, kNapNs);
    header.source_sleeps.store(0, std::memory_order_seq_cst);
  }
  withdraw();
}

// Serves one request of each channel in turn, so that targets get equal shares. False if there was none.
bool Source::Impl::serve_one_each() {
  bool any = false;
  for (uint32_t c = 0; c < served.size(); ++c) {
    const uint32_t asked = board.channels[c].asked.load(std::memory_order_acquire);
    if (asked == served[c]) {
      continue;
    }
    any = true;
    const bool plausible = distance(asked, served[c]) > 0 && distance(asked, served[c]) <= int32_t{kSlots};
    if (plausible) {
      answer(c, ++served[c]);
      continue;
    }
    served[c] = asked;
    for (Slot& slot : board.channels[c].slots) {
      slot.code.store(static_cast<uint32_t>(ReplyCode::kMalformed), std::memory_order_relaxed);
    }
    board.channels[c].answered.store(asked, std::memory_order_seq_cst);
    futex_wake_all(board.channels[c].answered);
  }
  return any;
}

void Source::Impl::answer(uint32_t c, uint32_t number) {
  Channel& channel = board.channels[c];
  Slot& slot = channel.slots[number % kSlots];
  const Request request{static_cast<Kind>(slot.kind.load(std::memory_order_relaxed)),
                        slot.offset.load(std::memory_order_relaxed), slot.bytes.load(std::memory_order_relaxed)};
  uint64_t sum = 0;
  const ReplyCode code = fill(slot, request, board.bytes[c][number % kSlots], &sum);
  if (code == ReplyCode::kOk && request.kind == Kind::kData) {
    bytes_served.fetch_add(request.bytes, std::memory_order_relaxed);
  }
  if (should_stop()) {
    return;  // a digest may be half finished
  }
  slot.reply_offset.store(request.offset, std::memory_order_relaxed);
  slot.reply_bytes.store(request.bytes, std::memory_order_relaxed);
  slot.checksum.store(sum, std::memory_order_relaxed);
  slot.code.store(static_cast<uint32_t>(code), std::memory_order_relaxed);
  channel.answered.store(number, std::memory_order_seq_cst);
  if (channel.target_sleeps.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(channel.answered);
  }
}

// `request` is a copy that the target can no longer change.
ReplyCode Source::Impl::fill(const Slot& slot, const Request& request, std::byte* out, uint64_t* sum) {
  if (slot.identity.load(std::memory_order_relaxed) != identity) {
    return ReplyCode::kWrongIdentity;
  }
  uint64_t limit = 0;
  uint64_t unit = 1;
  switch (request.kind) {
    case Kind::kManifest:
      limit = manifest.size();
      break;
    case Kind::kSizes:
    case Kind::kDigests:
      limit = space.entries();
      unit = sizeof(uint64_t);
      break;
    case Kind::kData:
      limit = space.total_bytes();
      break;
    default:
      return ReplyCode::kMalformed;
  }
  if (request.bytes > kSlotBytes / unit || request.offset > limit || request.bytes > limit - request.offset) {
    return ReplyCode::kMalformed;
  }
  if ((request.kind == Kind::kDigests || request.kind == Kind::kData) &&
      slot.version.load(std::memory_order_relaxed) != version) {
    return ReplyCode::kWrongIdentity;
  }
  if (request.kind == Kind::kData) {
    *sum = space.read(copy, request.offset, request.bytes, out);
    return ReplyCode::kOk;
  }
  if (request.kind == Kind::kManifest) {
    std::memcpy(out, manifest.data() + request.offset, request.bytes);
  } else if (request.kind == Kind::kDigests) {
    digests(request, out);
  } else {
    for (uint64_t i = 0; i < request.bytes; ++i) {
      const uint64_t bytes = space.bytes(request.offset + i);
      std::memcpy(out + i * unit, &bytes, unit);
    }
  }
  *sum = checksum(out, request.bytes * unit);
  return ReplyCode::kOk;
}

void Source::Impl::digests(const Request& request, std::byte* out) {
  for (uint64_t i = 0; i < request.bytes; ++i) {
    const uint64_t entry = request.offset + i;
    if (!digest_known[entry]) {
      digest_of[entry] = space.digest(copy, entry, [this] { return should_stop(); });
      digest_known[entry] = !should_stop();
    }
    std::memcpy(out + i * sizeof(uint64_t), &digest_of[entry], sizeof(uint64_t));
  }
}

Source::Source(std::byte* region, DeviceCopy& copy, const std::atomic<uint32_t>* interrupted)
    : impl_(std::make_unique<Impl>(region, copy, interrupted)) {}

Source::~Source() { stop(); }

Status Source::publish(brain::Identity identity, brain::Version version, std::string manifest,
                       std::vector<Region> regions) {
  stop();
  Impl& source = *impl_;
  if (manifest.size() > kMaxManifestBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("the manifest has %d bytes; %d are the most a source publishes",
                                                      manifest.size(), kMaxManifestBytes));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(source.space, TensorSpace::create(std::move(regions)));
  KEEPSTEP_RETURN_IF_ERROR(source.space.open_devices(source.copy));
  if (source.is_interrupted()) {
    return absl::AbortedError("publish: the generation was interrupted");
  }
  source.identity = pack(identity);
  source.version = version;
  source.manifest = std::move(manifest);
  source.digest_of.assign(source.space.entries(), 0);
  source.digest_known.assign(source.space.entries(), false);

  source.reset_board();
  Header& header = source.board.header;
  header.interrupted.store(0, std::memory_order_relaxed);
  header.layout_version.store(kLayoutVersion, std::memory_order_relaxed);
  header.identity.store(source.identity, std::memory_order_relaxed);
  header.version.store(version, std::memory_order_relaxed);
  header.manifest_bytes.store(source.manifest.size(), std::memory_order_relaxed);
  header.entries.store(source.space.entries(), std::memory_order_relaxed);
  header.total_bytes.store(source.space.total_bytes(), std::memory_order_relaxed);
  header.sizes_checksum.store(source.space.sizes_checksum(), std::memory_order_relaxed);
  source.stopping.store(false, std::memory_order_release);
  // stop() left `edition` even, unless an earlier worker died while it published in this region.
  const uint32_t edition = header.edition.load(std::memory_order_relaxed);
  header.edition.store(edition + (is_published(edition) ? 2 : 1), std::memory_order_release);
  futex_wake_all(header.edition);
  source.thread = std::thread([&source] { source.serve(); });
  return absl::OkStatus();
}

void Source::stop() {
  Impl& source = *impl_;
  if (!source.thread.joinable()) {
    return;
  }
  source.stopping.store(true, std::memory_order_release);
  source.board.header.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(source.board.header.bell);
  source.thread.join();
}

uint64_t Source::bytes_served() const { return impl_->bytes_served.load(std::memory_order_relaxed); }

}  // namespace keepstep::state
