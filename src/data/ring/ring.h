// A ring of batches in shared memory: one loader writes items, the ranks of a node read them without a copy.
//
// Layout, order of writes and faults: docs/formats/data_ring.md. Three views of one memory: RingOwner (the agent:
// creates it, admits and removes readers), RingWriter (the loader process), RingReader (a rank). Each may die at any
// instant. Values that another process wrote are checked before use: a rank may have overwritten them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "data/ring/ring_layout.h"

namespace keepstep::data {

// The same for all readers of a ring. Units: items.
struct RingSpec {
  uint32_t round = 1;        // items that all ranks together use between two moves of their position
  uint32_t ahead = 10;       // items loaded beyond a round
  uint32_t behind = 2;       // items kept before it
  uint64_t limit_bytes = 0;  // of all items held, in pages; 0: no limit

  uint64_t slots() const { return uint64_t{round} + ahead + behind; }
  bool operator==(const RingSpec&) const = default;
  // INVALID_ARGUMENT: no round, or more slots than kMaxRingSlots.
  Status check() const;
};

class RingOwner {
 public:
  // RESOURCE_EXHAUSTED: no memory. `start`: the first item.
  static StatusOr<std::unique_ptr<RingOwner>> create(const RingSpec& spec, uint64_t start, uint64_t incarnation);

  // Admits a process, which needs items from `position` on, and wakes a loader that waits for room. OUT_OF_RANGE: those
  // items are gone, or further ahead than the ring reaches. RESOURCE_EXHAUSTED: there are kRingReaders readers already.
  StatusOr<uint32_t> join(uint64_t position, pid_t pid);
  void leave(uint32_t row);
  // `why` is truncated to what fits.
  void set_loader(LoaderState state, std::string_view why = {});
  LoaderState loader() const;
  // Wakes ranks that sleep, so that they look again.
  void ring_bell();
  uint64_t head() const { return control().head.load(std::memory_order_acquire); }
  uint64_t start() const { return control().start; }

  const RingSpec& spec() const { return spec_; }
  uint64_t incarnation() const { return control().incarnation; }
  int control_fd() const { return memory_.fd(); }
  int data_fd() const { return data_.get(); }

 private:
  RingOwner(RingSpec spec, SharedMemory memory, Fd data)
      : spec_(spec), memory_(std::move(memory)), data_(std::move(data)) {}
  RingControl& control() const { return *reinterpret_cast<RingControl*>(memory_.data()); }
  RingSpec spec_;
  SharedMemory memory_;
  Fd data_;
};

// Both memories, mapped and checked: what reader and writer share. It owns the descriptors it is given.
class RingMemory {
 public:
  // INVALID_ARGUMENT: not the memory of a ring of this version.
  static StatusOr<std::shared_ptr<RingMemory>> attach(Fd control, Fd data);

  RingControl& control() const { return *reinterpret_cast<RingControl*>(memory_.data()); }
  RingSlot& slot(uint64_t number) const;
  uint64_t data_bytes() const { return data_bytes_; }
  uint64_t slots() const { return slots_; }
  int data_fd() const { return data_.get(); }
  LoaderState loader() const;
  std::string why() const;  // of kGivenUp
  // The loader's state stored with `slot`; empty if there is none. DATA_LOSS: it is outside the memory.
  StatusOr<std::string> state_of(const RingSlot& slot) const;

 private:
  RingMemory(SharedMemory memory, Fd data, uint64_t data_bytes, uint64_t slots)
      : memory_(std::move(memory)), data_(std::move(data)), data_bytes_(data_bytes), slots_(slots) {}
  SharedMemory memory_;
  Fd data_;
  uint64_t data_bytes_;  // checked copies: shared words may change under us
  uint64_t slots_;
};

// One piece of what to write: `bytes` at `address`, `offset` from the beginning of the item.
struct RingPiece {
  uint64_t offset = 0;
  const void* address = nullptr;
  uint64_t bytes = 0;
};

// One item as it is published.
struct RingItem {
  uint64_t number = 0;
  uint64_t epoch = 0;
  uint64_t index = 0;
  ItemKind kind = ItemKind::kBatch;
  uint64_t batch_bytes = 0;
  uint64_t state_bytes = 0;
};

// The loader process's view. One thread.
class RingWriter {
 public:
  explicit RingWriter(std::shared_ptr<RingMemory> memory) : memory_(std::move(memory)) {}

  uint64_t head() const { return memory_->control().head.load(std::memory_order_relaxed); }
  uint64_t start() const { return memory_->control().start; }
  // Item head - 1, std::nullopt if none is published; and its state, empty if it has none.
  std::optional<RingItem> last() const;
  StatusOr<std::string> last_state() const;

  // Publishes item number head() (`item.number` is ignored); waits until there is room. Pieces are those of the batch,
  // then of the state, with offsets from the beginning of the item; bytes that no piece covers are undefined.
  // RESOURCE_EXHAUSTED: it does not fit the limit, either at all or while the ranks wait for it; nothing was published.
  // An error or an end of at most kRingErrorBytes always fits; nothing may follow it. Other errors: the machine is out
  // of memory.
  Status put(const RingItem& item, std::span<const RingPiece> pieces);

 private:
  std::optional<uint64_t> least_position() const;  // of all readers
  struct Bounds {
    uint64_t tail = 0;
    std::optional<uint64_t> least;  // the position of the rearmost reader, which determines the tail
  };
  Bounds advance_tail();
  std::optional<uint64_t> find_gap(uint64_t bytes) const;
  Status no_room(uint64_t bytes) const;
  void publish(const RingItem& item, uint64_t offset);
  std::shared_ptr<RingMemory> memory_;
  uint64_t taken_ = 0;  // bytes of the data memory that this process has allocated
};

// A batch in a rank: a private mapping of an item's bytes. Any thread may release it.
class RingView {
 public:
  ~RingView();
  RingView(const RingView&) = delete;
  RingView& operator=(const RingView&) = delete;

  const RingItem& item() const { return item_; }
  std::byte* data() const { return data_; }
  size_t size() const { return item_.batch_bytes; }

 private:
  friend class RingReader;
  struct Views;
  RingView(std::shared_ptr<Views> views, RingItem item, std::byte* data, size_t mapped);
  // From here on it has pages of its own.
  void detach();
  std::shared_ptr<Views> views_;
  RingItem item_;
  std::byte* data_;
  size_t mapped_;
  bool detached_ = false;
};

// A rank's view. One thread; results of `view` may be released on any thread.
class RingReader {
 public:
  // `row`: as returned by RingOwner::join.
  static StatusOr<std::unique_ptr<RingReader>> create(std::shared_ptr<RingMemory> memory, uint32_t row);
  // Live views get pages of their own; afterwards the row may be given back.
  ~RingReader();

  // False once the owner has given the row to another process: what is read then may be overwritten.
  bool joined() const;
  uint64_t position() const { return position_; }
  uint64_t head() const { return memory_->control().head.load(std::memory_order_acquire); }
  // The kind of the last published item; std::nullopt if there is none.
  std::optional<ItemKind> newest() const;
  LoaderState loader() const { return memory_->loader(); }
  std::string why() const { return memory_->why(); }
  uint64_t incarnation() const { return memory_->control().incarnation; }

  // Nothing before `position` - behind is read through the ring from here on; live views of such items get pages of
  // their own first. Moving backward is allowed while the items are still there; otherwise OUT_OF_RANGE.
  Status move_to(uint64_t position);
  // Gives live views pages of their own: meanwhile the row may go to another process.
  void detach();
  // The bell's value. Read it before you look for work.
  uint32_t bell() const { return memory_->control().bell.load(std::memory_order_acquire); }
  // Sleeps until the bell differs from `seen`, or a signal arrives; may return early.
  void wait(uint32_t seen) const;
  // Item `number`, which must be published and not below position() - behind. OUT_OF_RANGE: it is not there; DATA_LOSS:
  // the slot's values are impossible.
  StatusOr<std::shared_ptr<RingView>> view(uint64_t number);
  // The metadata of item `number`, without its bytes. The same errors.
  StatusOr<RingItem> item(uint64_t number) const;
  // The loader's state after item `number`; empty if it has none. The same errors.
  StatusOr<std::string> state(uint64_t number) const;

 private:
  RingReader(std::shared_ptr<RingMemory> memory, uint32_t row);
  void detach_before(uint64_t number);
  StatusOr<RingSlot> slot(uint64_t number) const;
  std::shared_ptr<RingMemory> memory_;
  RingRow& row_;
  uint32_t pid_;  // as the owner wrote it
  uint64_t position_;
  std::shared_ptr<RingView::Views> views_;
};

}  // namespace keepstep::data
