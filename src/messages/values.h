// Values of other modules that messages carry, field by field.
#pragma once

#include "brain/copies/parity_rebuild.h"
#include "brain/copies/shard_copies.h"
#include "brain/detect/progress.h"
#include "brain/detect/stragglers.h"
#include "brain/types.h"
#include "comm/communicator.h"
#include "messages/schema.h"

namespace keepstep::brain {

KEEPSTEP_FIELDS_OF(Identity, term, generation)
KEEPSTEP_FIELDS_OF(Sharding, number, world)
KEEPSTEP_FIELDS_OF(ParityBlock, members, row)
KEEPSTEP_FIELDS_OF(RankPace, rank, computed, quick, step)
// What an agent tells others of a rank that waits: not what it judges by itself (processes, clocks of its machine).
KEEPSTEP_FIELDS_OF(RankProgress, rank, worker, step, micro_batch, phase, entered, left, entered_world, messages, waits,
                   what, world, members, still_for)

}  // namespace keepstep::brain

namespace keepstep::comm {

KEEPSTEP_FIELDS_OF(CommConfig, max_world, max_local, groups, slot_bytes, group_slot_bytes, ring_bytes)

}  // namespace keepstep::comm
