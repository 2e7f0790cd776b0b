#include "brain/types.h"

#include "brain/require.h"

namespace keepstep::brain {
namespace {

constexpr int kVoteShift = 61;
constexpr int kTermShift = 52;
constexpr int kGenerationShift = 32;
constexpr int kKindShift = 62;

constexpr uint64_t low_bits(int count) { return (uint64_t{1} << count) - 1; }

}  // namespace

uint64_t pack(const StepWord& word) {
  require(word.identity.term <= low_bits(9), "a term does not fit into its 9 bits");
  require(word.identity.generation <= low_bits(20), "a generation does not fit into its 20 bits");
  require(word.step <= low_bits(32), "a step does not fit into its 32 bits");
  return (word.sealed ? kSealedBit : 0) | uint64_t{static_cast<uint8_t>(word.vote)} << kVoteShift |
         uint64_t{word.identity.term} << kTermShift | uint64_t{word.identity.generation} << kGenerationShift |
         word.step;
}

StepWord unpack_step_word(uint64_t bits) {
  const uint64_t vote = bits >> kVoteShift & low_bits(2);
  StepWord word;
  word.sealed = (bits & kSealedBit) != 0;
  // The fourth pattern can only come from a worker that overwrote its page: it proves no vote, and must not make the
  // reader abort.
  word.vote = vote <= static_cast<uint8_t>(Vote::kDecided) ? static_cast<Vote>(vote) : Vote::kOpen;
  word.identity.term = static_cast<uint32_t>(bits >> kTermShift & low_bits(9));
  word.identity.generation = static_cast<uint32_t>(bits >> kGenerationShift & low_bits(20));
  word.step = bits & low_bits(32);
  return word;
}

uint64_t pack(const StateWord& word) {
  require(word.version <= low_bits(kKindShift), "a version does not fit into its 62 bits");
  return uint64_t{static_cast<uint8_t>(word.kind)} << kKindShift | word.version;
}

StateWord unpack_state_word(uint64_t bits) {
  return StateWord{static_cast<StateKind>(bits >> kKindShift), bits & low_bits(kKindShift)};
}

const char* name(Vote vote) {
  switch (vote) {
    case Vote::kOpen:
      return "open";
    case Vote::kYes:
      return "yes";
    case Vote::kDecided:
      return "decided";
  }
  return "unknown";
}

const char* name(StateKind kind) {
  switch (kind) {
    case StateKind::kEmpty:
      return "empty";
    case StateKind::kHydrating:
      return "hydrating";
    case StateKind::kClean:
      return "clean";
    case StateKind::kUpdating:
      return "updating";
  }
  return "unknown";
}

}  // namespace keepstep::brain
