#include "agent/memory/generation.h"

#include <string>

namespace keepstep::agent {

StatusOr<std::unique_ptr<Generation>> Generation::create(const brain::Prepare& prepare,
                                                         const comm::CommConfig& config) {
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory,
                            SharedMemory::create("keepstep-generation-" + std::to_string(prepare.identity.generation),
                                                 rank::generation_page_bytes(config)));
  auto* page = reinterpret_cast<rank::GenerationPage*>(memory.data());
  page->magic = rank::kGenerationMagic;
  page->term = prepare.identity.term;
  page->generation = prepare.identity.generation;
  page->world = static_cast<uint32_t>(prepare.members.size());
  page->across = prepare.members.size() < prepare.table.world_size() ? 1 : 0;
  return std::unique_ptr<Generation>(new Generation(prepare.identity, config, std::move(memory)));
}

void Generation::interrupt() {
  rank::ring(page());
  comm::wake_all(config_, memory_.data() + rank::kHeaderBytes);
}

std::vector<brain::SealedWord> Generation::seal(const std::vector<Holder>& holders) {
  // The mark comes before the seals: a worker that opens its word for this generation looks at the mark afterwards,
  // so it finds either our seal or the mark (rank::Steps::open).
  page().sealing.store(1);
  std::vector<brain::SealedWord> words;
  for (const Holder& member : holders) {
    const brain::StepWord was = brain::unpack_step_word(member.page->word.fetch_or(brain::kSealedBit));
    words.push_back({member.rank, member.worker, was, brain::unpack_state_word(member.page->state.load()),
                     was.vote == brain::Vote::kOpen ? std::nullopt : rank::load_digest(*member.page, was.step)});
  }
  // Only now may collectives be cut short: a rank whose gradients are no longer sums can no longer vote for them.
  cut_collectives_short();
  return words;
}

void Generation::cut_collectives_short() {
  page().interrupted.store(1);
  interrupt();
}

Generation::DecidedStep Generation::newest_decided_step() const {
  DecidedStep newest;
  for (const rank::MeanSlot& slot : page().mean) {
    if (const brain::Step step = slot.step.load(); step > newest.step) {
      newest = {step, slot.mean.load(), slot.flags.load()};
    }
  }
  return newest;
}

void Generation::announce(brain::Version version, std::optional<double> mean_loss, uint32_t flags) {
  if (mean_loss.has_value()) {
    rank::store_mean(page(), version, *mean_loss, flags);
  }
  page().verdict_version = version;
  page().verdict_ready = 1;
  rank::ring(page());
}

void Generation::announce_end() {
  page().verdict_ready = 2;
  interrupt();
}

}  // namespace keepstep::agent
