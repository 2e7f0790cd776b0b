// Numbers that both sides of a boundary need: Python takes them from here.

#include <nanobind/nanobind.h>

#include "bindings/convert.h"
#include "brain/copies/parity_placement.h"
#include "data/ring/ring_layout.h"
#include "messages/store_value.h"
#include "rank/vote/step_vote.h"

namespace nb = nanobind;

namespace keepstep::rank {

void bind_constants(nb::module_& module) {
  const auto number = [&module](const char* name, auto value) { module.attr(name) = static_cast<uint64_t>(value); };
  number("FLAG_VETO", brain::kFlagVeto);
  number("FLAG_FIRST_DESTINATION", brain::kFlagFirstDestination);
  number("MAX_STORE_VALUE_BYTES", messages::kMaxStoreValueBytes);
  number("MAX_BLOCKS_OF_GROUP", brain::kMaxBlocksOfGroup);
  number("LOADER_NONE", data::LoaderState::kNone);
  number("LOADER_STARTING", data::LoaderState::kStarting);
  number("LOADER_RUNS", data::LoaderState::kRuns);
  number("LOADER_GIVEN_UP", data::LoaderState::kGivenUp);
  number("ITEM_SKIPPED", data::ItemKind::kSkipped);
  number("ITEM_BATCH", data::ItemKind::kBatch);
  number("ITEM_ERROR", data::ItemKind::kError);
  number("ITEM_END", data::ItemKind::kEnd);
}

}  // namespace keepstep::rank
