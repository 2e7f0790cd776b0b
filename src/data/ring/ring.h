// A ring of batches in shared memory: one loader writes items, the ranks of a node read them without a copy.
//
// Layout, order of writes and faults: docs/formats/data_ring.md. Three views of one memory: RingOwner (the agent: makes
// it, lets readers in and out), RingWriter (the loader process), RingReader (a rank). Each may die at any instant.
// What the others wrote is bounded before it is used: a rank may have written over it.
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

// Of all readers of a ring the same. Units: items.
struct RingSpec {
  uint32_t round = 1;        // items that all ranks together use between two moves of their position
  uint32_t ahead = 10;       // kept loaded beyond a round
  uint32_t behind = 2;       // kept before it
  uint64_t limit_bytes = 0;  // of all items that are kept, in pages; 0: none

  uint64_t slots() const { return uint64_t{round} + ahead + behind; }
  bool operator==(const RingSpec&) const = default;
  // INVALID_ARGUMENT: no round, or more slots than kMaxRingSlots.
  Status check() const;
};

class RingOwner {
 public:
  // RESOURCE_EXHAUSTED: no memory. `start`: the first item.
  static StatusOr<std::unique_ptr<RingOwner>> create(const RingSpec& spec, uint64_t start, uint64_t incarnation);

  // Lets a process in; it needs items from `position` on. A loader that waits for room looks again. OUT_OF_RANGE: they
  // are gone, or further ahead than the ring reaches. RESOURCE_EXHAUSTED: kRingReaders read already.
  StatusOr<uint32_t> join(uint64_t position, pid_t pid);
  void leave(uint32_t row);
  // `why` is cut at what fits.
  void set_loader(LoaderState state, std::string_view why = {});
  LoaderState loader() const;
  // Ranks that sleep look around.
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

// Both memories, mapped and checked: what reader and writer share. Copies of the descriptors are its own.
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
  // The loader's state that is stored with `slot`; empty: none. DATA_LOSS: it lies outside of the memory.
  StatusOr<std::string> state_of(const RingSlot& slot) const;

 private:
  RingMemory(SharedMemory memory, Fd data, uint64_t data_bytes, uint64_t slots)
      : memory_(std::move(memory)), data_(std::move(data)), data_bytes_(data_bytes), slots_(slots) {}
  SharedMemory memory_;
  Fd data_;
  uint64_t data_bytes_;  // checked copies: shared words may change under us
  uint64_t slots_;
};

// A part of what is to be written: `bytes` at `address`, `offset` from the item's beginning.
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

// The loader process's. One thread.
class RingWriter {
 public:
  explicit RingWriter(std::shared_ptr<RingMemory> memory) : memory_(std::move(memory)) {}

  uint64_t head() const { return memory_->control().head.load(std::memory_order_relaxed); }
  uint64_t start() const { return memory_->control().start; }
  // Item head - 1, if the ring still has its slot; its state, if it has one.
  std::optional<RingItem> last() const;
  StatusOr<std::string> last_state() const;

  // Publishes item number head(), `item.number` is not looked at; waits until there is room. Pieces are those of the
  // batch, then of the state, with offsets from the item's beginning; what they leave out is undefined.
  // RESOURCE_EXHAUSTED: it cannot fit the limit, ever or while the ranks wait for it; nothing was published. An error
  // or an end, at most kRingErrorBytes long, always fits; nothing may follow it.
  // Others: the machine has no memory.
  Status put(const RingItem& item, std::span<const RingPiece> pieces);

 private:
  std::optional<uint64_t> least_position() const;  // of all readers
  struct Bounds {
    uint64_t tail = 0;
    std::optional<uint64_t> least;  // position of all readers, which the tail follows from
  };
  Bounds advance_tail();
  std::optional<uint64_t> find_gap(uint64_t bytes) const;
  Status no_room(uint64_t bytes) const;
  void publish(const RingItem& item, uint64_t offset);
  std::shared_ptr<RingMemory> memory_;
  uint64_t taken_ = 0;  // of the data memory, by this process
};

// A batch in a rank: a private mapping of an item's bytes. Any thread may let go of it.
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

// A rank's. One thread; `view`'s results may be dropped on any.
class RingReader {
 public:
  // `row`: as RingOwner::join said.
  static StatusOr<std::unique_ptr<RingReader>> create(std::shared_ptr<RingMemory> memory, uint32_t row);
  // Views that are held get pages of their own; the row may be given back afterwards.
  ~RingReader();

  // False once the owner has given the row away: what is read then may be written over.
  bool joined() const;
  uint64_t position() const { return position_; }
  uint64_t head() const { return memory_->control().head.load(std::memory_order_acquire); }
  // Of the last item that is published; nothing if none is.
  std::optional<ItemKind> newest() const;
  LoaderState loader() const { return memory_->loader(); }
  std::string why() const { return memory_->why(); }
  uint64_t incarnation() const { return memory_->control().incarnation; }

  // Nothing before `position` - behind is read through the ring any more; views that are held of it get pages of their
  // own first. Backwards is allowed as long as nothing is gone; OUT_OF_RANGE then.
  Status move_to(uint64_t position);
  // Views that are held get pages of their own: the row may be given away meanwhile.
  void detach();
  // The bell's value, to be read before one looks whether there is something to do.
  uint32_t bell() const { return memory_->control().bell.load(std::memory_order_acquire); }
  // Sleeps until the bell has another value than `seen`, or a signal; may return early.
  void wait(uint32_t seen) const;
  // Item `number`, which must be published and not below position() - behind. OUT_OF_RANGE: it is not there;
  // DATA_LOSS: what the slot says cannot be.
  StatusOr<std::shared_ptr<RingView>> view(uint64_t number);
  // How item `number` came about, without its bytes. The same errors.
  StatusOr<RingItem> item(uint64_t number) const;
  // The loader's state after item `number`; empty: it has none. The same errors.
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
