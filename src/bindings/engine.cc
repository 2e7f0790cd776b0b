// Binds rank/engine/engine.h. Every call that may wait releases the GIL.

#include "rank/engine/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <new>
#include <tuple>

#include "base/checksum.h"
#include "base/digest.h"
#include "bindings/convert.h"
#include "bindings/messages.h"
#include "comm/tcp/link_fault.h"
#include "data/order/sample_order.h"
#include "data/order/seeds.h"
#include "rank/link/communicator_handle.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using Pieces = std::vector<std::tuple<uintptr_t, uint64_t, int>>;  // address, bytes, CUDA device (-1: main memory)

std::vector<state::Region> regions_of(const Pieces& pieces) {
  std::vector<state::Region> regions;
  regions.reserve(pieces.size());
  for (const auto& [address, bytes, device] : pieces) {
    regions.push_back({reinterpret_cast<void*>(address), bytes, device});
  }
  return regions;
}

// Releases the GIL only if the log is full: getting it back may take longer than everything else.
void make_room(Engine& engine) {
  if (!engine.steps().has_room()) {
    without_gil([&] { engine.steps().make_room(); });
  }
}

void bind_values(nb::module_& module) {
  nb::enum_<brain::Fill>(module, "Fill", "Where a rank gets the state of its generation's version from.")
      .value("NOTHING", brain::Fill::kNothing, "It has that.")
      .value("PEERS", brain::Fill::kPeers, "Living ranks that have it.")
      .value("COPY", brain::Fill::kCopy, "A copy of what only this rank had.")
      .value("PARTS", brain::Fill::kParts, "Copies of what others had, before the state was resharded: `reshard`.")
      .value("SAVED", brain::Fill::kSaved, "Where it was saved, for no living rank has it.");
  nb::enum_<brain::NextStep>(module, "NextStep", "What follows in the loop over steps.")
      .value("STEP", brain::NextStep::kStep, "The one after the last committed one.")
      .value("PAUSE", brain::NextStep::kPause, "The world changes: `Engine.pause`.")
      .value("STOP", brain::NextStep::kStop, "The job stops before its last step: `Engine.stop`.")
      .value("END", brain::NextStep::kEnd, "There are no more steps.");

  nb::class_<brain::Moved>(module, "Moved", "What a process does because its place is another one than before.")
      .def_ro("regroup", &brain::Moved::regroup, "Process groups go.")
      .def_ro("rebuild", &brain::Moved::rebuild,
              "Sharded state is divided in a new way: the function is entered, to build again, before this rank joins.")
      .def_ro("resized", &brain::Moved::resized, "The function hears that the world is another one than before.")
      .def_ro("resized_from", &brain::Moved::resized_from, "Ranks of that world; perhaps as many as now.")
      .def_ro("put_back", &brain::Moved::put_back, "Options are put back before: it was told of worlds in between.");

  nb::class_<Assignment>(module, "Assignment", "A rank in a generation (src/rank/link/assignment.h).")
      .def(
          "__init__",
          [](Assignment* self, uint32_t rank, uint32_t world_size, std::string entry, std::string because) {
            new (self) Assignment{.rank = rank,
                                  .world = world_size,
                                  .newcomer = true,
                                  .entry = std::move(entry),
                                  .because = std::move(because)};
          },
          "rank"_a, "world_size"_a, "entry"_a, "because"_a, "A newcomer's, in no generation.")
      .def_prop_ro("term", [](const Assignment& self) { return self.identity.term; })
      .def_prop_ro("generation", [](const Assignment& self) { return self.identity.generation; })
      .def_ro("rank", &Assignment::rank)
      .def_ro("world_size", &Assignment::world)
      .def_ro("version", &Assignment::version)
      .def_ro("newcomer", &Assignment::newcomer)
      .def_ro("entry", &Assignment::entry)
      .def_ro("because", &Assignment::because)
      .def_ro("environment", &Assignment::environment, "Variables that follow from the rank.");
}

void bind_membership(nb::class_<Engine>& engine) {
  engine
      .def_static(
          "attach",
          [](int socket, int memory, const messages::Texts& fingerprint) {
            return value_or_throw(without_gil([&] { return Engine::attach(Fd(socket), Fd(memory), fingerprint); }));
          },
          "socket"_a, "memory"_a, "fingerprint"_a, "Takes both descriptors; waits for the agent's welcome.")
      .def_prop_ro("worker", [](Engine& engine) { return engine.agent().worker(); })
      .def("take_injections", [](Engine& engine) { return engine.agent().take_injections(); })
      .def_prop_ro("welcome", [](Engine& engine) { return engine.agent().welcome(); })
      .def("wait_assignment",
           [](Engine& engine) { return value_or_throw(without_gil([&] { return engine.wait_assignment(); })); })
      .def_prop_ro(
          "moved", [](Engine& engine) { return engine.moved(); },
          "What the newest assignment means for what this process has.")
      .def("built", &Engine::built, "What it protects was built for its rank, and for how state is divided now.")
      .def("let_go", &Engine::let_go, "All of that is gone.")
      .def_prop_ro(
          "version", [](Engine& engine) { return engine.brain().version(); }, "Committed steps.")
      .def_prop_ro(
          "formed", [](Engine& engine) { return engine.brain().formed(); },
          "The generation formed, and this rank did not leave it.")
      .def_prop_ro(
          "pauses", [](Engine& engine) { return engine.brain().pauses(); },
          "All ranks know that the world changes after the last committed step.")
      .def_prop_ro(
          "stops", [](Engine& engine) { return engine.brain().stops(); }, "All ranks know that the job stops after it.")
      .def_prop_ro(
          "finished", [](Engine& engine) { return engine.brain().phase() == brain::RankPhase::kFinished; },
          "All ranks finished: nothing is done again.")
      .def(
          "ready",
          [](Engine& engine, bool sharded, bool as_built) {
            const Readiness readiness = value_or_throw(without_gil([&] { return engine.ready(sharded, as_built); }));
            std::vector<nb::bytes> texts;
            for (const std::string& text : readiness.texts) {
              texts.push_back(to_bytes(text));
            }
            return std::tuple(readiness.fill, readiness.gives, std::move(texts));
          },
          "sharded"_a = false, "as_built"_a = false,
          "Where the state of `version` comes from, whether peers get theirs from here, and what was written with the "
          "copy, or with each of the parts.")
      .def("filling", &Engine::filling, "The state is about to be filled: until `filled` no peer may read it.")
      .def("filled", &Engine::filled, "The state is that of `version`: peers may pull it.")
      .def("form", [](Engine& engine) { throw_if_error(without_gil([&] { return engine.form(); })); })
      .def("wait_interruption",
           [](Engine& engine) { throw_if_error(without_gil([&] { return engine.wait_interruption(); })); })
      .def("leave", &Engine::leave, "The interrupted generation was left, and what was to follow in it is forgotten.")
      .def(
          "fail",
          [](Engine& engine, uint64_t step, std::string what, std::string traceback, bool fatal, bool after_commit) {
            messages::Faulted failure{.step = step,
                                      .what = std::move(what),
                                      .traceback = std::move(traceback),
                                      .fatal = fatal,
                                      .after_commit = after_commit};
            throw_if_error(without_gil([&] { return engine.fail(std::move(failure)); }));
          },
          "step"_a, "what"_a, "traceback"_a, "fatal"_a, "after_commit"_a,
          "Tells the job that user code failed, and waits until the generation is interrupted.");
}

void bind_ends(nb::class_<Engine>& engine) {
  engine
      .def(
          "pause", [](Engine& engine) { throw_if_error(without_gil([&] { return engine.pause(); })); },
          "The world changes: waits with all other ranks, and never returns.")
      .def("finish", [](Engine& engine) { throw_if_error(without_gil([&] { return engine.finish(); })); })
      .def(
          "start_again", [](Engine& engine) { without_gil([&] { engine.start_again(); }); },
          "After finish(): another recoverable function begins, without a rank and at version 0.")
      .def(
          "stop", [](Engine& engine) { throw_if_error(without_gil([&] { return engine.stop(); })); },
          "A notice came: ends with all other ranks, and never returns.")
      .def(
          "next_step", [](Engine& engine, uint64_t until) { return value_or_throw(engine.next(until)); }, "until"_a)
      .def(
          "pause_asked", [](Engine& engine) { return engine.agent().pause_asked(); },
          "Whether the world is about to change, as far as this node was told.")
      .def(
          "notice", [](Engine& engine) { return engine.agent().notice(); },
          "Why the job has to stop soon, as this node was told; empty: it was not.")
      .def("close", [](Engine& engine) { without_gil([&] { engine.close(); }); })
      .def("communicator",
           [](Engine& self) {
             std::shared_ptr<comm::Communicator> communicator = self.communicator();
             return communicator == nullptr ? nullptr : std::make_unique<CommunicatorHandle>(std::move(communicator));
           })
      .def("interrupted", &Engine::interrupted)
      .def("broken_link", &Engine::broken_link);
}

void bind_state(nb::class_<Engine>& engine) {
  engine.def("updating", [](Engine& engine) { return engine.steps().updating(); })
      .def(
          "set_state",
          [](Engine& engine, const std::string& kind, uint64_t version) {
            const auto known = {brain::StateKind::kEmpty, brain::StateKind::kHydrating, brain::StateKind::kClean,
                                brain::StateKind::kUpdating};
            for (brain::StateKind each : known) {
              if (kind == brain::name(each)) {
                engine.set_state(each, version);
                return;
              }
            }
            throw nb::value_error(("no such state: " + kind).c_str());
          },
          "kind"_a, "version"_a)
      .def("state",
           [](const Engine& engine) {
             const brain::StateWord word = engine.state();
             return std::pair<std::string, uint64_t>(brain::name(word.kind), word.version);
           })
      .def(
          "publish",
          [](Engine& engine, std::string manifest, const Pieces& pieces) {
            auto regions = regions_of(pieces);
            throw_if_error(
                without_gil([&] { return engine.transfer().publish(std::move(manifest), std::move(regions)); }));
          },
          "manifest"_a, "pieces"_a,
          "pieces: (address, bytes, CUDA device or -1) of each tensor, in the manifest's order.")
      .def("stop_publishing", [](Engine& engine) { without_gil([&] { engine.transfer().stop_publishing(); }); })
      .def("pull_manifest",
           [](Engine& engine) {
             return value_or_throw(without_gil([&] { return engine.transfer().pull_manifest(engine.activation()); }));
           })
      .def(
          "pull",
          [](Engine& engine, const Pieces& pieces) {
            const auto regions = regions_of(pieces);
            const state::Pulled pulled =
                value_or_throw(without_gil([&] { return engine.transfer().pull(engine.activation(), regions); }));
            return std::pair(pulled.bytes, pulled.bytes_skipped);
          },
          "pieces"_a);
}

void bind_shards(nb::class_<Engine>& engine) {
  engine
      .def(
          "reshard",
          [](Engine& engine, uint64_t version, const std::vector<std::string>& shards, const std::string& needs,
             nb::bytes text) {
            const std::string written(text.c_str(), text.size());
            throw_if_error(without_gil([&] { return engine.shards().reshard(version, shards, needs, written); }));
          },
          "version"_a, "shards"_a, "needs"_a, "text"_a)
      .def(
          "leave_shard",
          [](Engine& engine, uint64_t version) {
            throw_if_error(without_gil([&] { return engine.shards().leave(version); }));
          },
          "version"_a)
      .def(
          "load_shard",
          [](Engine& engine, uint64_t version, const Pieces& pieces) {
            const auto regions = regions_of(pieces);
            throw_if_error(without_gil([&] { return engine.shards().load(version, regions); }));
          },
          "version"_a, "pieces"_a)
      .def(
          "protect_shard",
          [](Engine& engine, uint64_t version, const Pieces& pieces, nb::bytes text, uint32_t copies,
             std::pair<uint32_t, uint32_t> parity) {
            throw_if_error(engine.shards().protect(version, regions_of(pieces), std::string(text.c_str(), text.size()),
                                                   {copies, parity.first, parity.second}));
          },
          "version"_a, "pieces"_a, "text"_a, "copies"_a, "parity"_a = std::pair(0, 0),
          "Begins to copy, or (parity: groups of so many ranks, with so many blocks) to code; the pieces must not "
          "change before wait_shard.")
      .def(
          "wait_shard",
          [](Engine& engine, uint64_t version) {
            throw_if_error(without_gil([&] { return engine.shards().wait(version); }));
          },
          "version"_a)
      .def("shard_counts", [](Engine& engine) {
        const ShardCopier::Counts counts = engine.shards().counts();
        return std::tuple(counts.versions, counts.bytes, counts.copied_ns, counts.given_ns, counts.waits,
                          counts.waited_ns);
      });
}

void bind_steps(nb::class_<Engine>& engine) {
  engine
      .def(
          "vote",
          [](Engine& engine, uint32_t flags) {
            return value_or_throw(without_gil([&] { return engine.vote(flags); }));
          },
          "flags"_a, "All ranks vote on the step: it counts, on all or on none. Returns the flags of all.")
      .def_prop_ro(
          "last_vote",
          [](Engine& engine) {
            const VoteResult& result = engine.steps().last_vote();
            return std::pair(result.voted_ns, result.decided_ns);
          },
          "CLOCK_MONOTONIC in ns: when this rank voted, and when it knew the decision.")
      .def("begin_update", &Engine::begin_update)
      .def("drop_state", &Engine::drop_state,
           "The state is of no version: no peer may read it, and it has to be hydrated.")
      .def(
          "end_update",
          [](Engine& engine) {
            make_room(engine);
            engine.end_update();
          },
          "The state is the step's: that is committed.")
      .def(
          "log",
          [](Engine& engine, uint64_t step, std::string_view values) {
            make_room(engine);
            throw_if_error(engine.steps().log(step, values));
          },
          "step"_a, "values"_a, "values: a JSON object as text, published with the step.")
      .def(
          "record_digest",
          [](Engine& engine, uint64_t step, uint64_t gradients, uint64_t state) {
            engine.steps().record_digest(step, {gradients, state});
          },
          "step"_a, "gradients"_a, "state"_a,
          "What this rank votes for in `step`: digests of its gradients and of its state; 0: not compared.")
      .def(
          "record_loss",
          [](Engine& engine, uint64_t step, double sum, uint64_t micro_batches) {
            engine.steps().record_loss(step, sum, micro_batches);
          },
          "step"_a, "sum"_a, "micro_batches"_a)
      .def(
          "mean_loss", [](Engine& engine, uint64_t step) { return engine.steps().mean_loss(step); }, "step"_a)
      .def(
          "at", [](Engine& engine, uint64_t step, uint64_t micro_batch) { engine.steps().at(step, micro_batch); },
          "step"_a, "micro_batch"_a, "How far the main thread is: micro-batches from 1; 0: before.")
      .def(
          "leave_loop", [](Engine& engine) { engine.steps().leave_loop(); }, "The main thread is in no step.")
      .def(
          "slow", [](Engine& engine, int change) { engine.steps().slow(change); }, "change"_a,
          "A section of run.slow begins (1) or ends (-1).");
}

void bind_capsules(nb::class_<Engine>& engine) {
  engine
      .def(
          "save_capsule",
          [](Engine& engine, uint64_t version, nb::bytes bytes) {
            throw_if_error(engine.capsules().save(version, {bytes.c_str(), bytes.size()}));
          },
          "version"_a, "bytes"_a)
      .def(
          "load_capsule",
          [](Engine& engine, uint64_t version) -> std::optional<nb::bytes> {
            const auto bytes = engine.capsules().load(version);
            return bytes.has_value() ? std::optional(to_bytes(*bytes)) : std::nullopt;
          },
          "version"_a)
      .def(
          "want_capsule", [](Engine& engine, bool wanted) { engine.capsules().want(wanted); }, "wanted"_a)
      .def(
          "copy_capsule",
          [](Engine& engine, uint64_t version) {
            if (engine.capsules().copied()) {
              throw_if_error(without_gil([&] { return engine.capsules().copy(version); }));
            }
          },
          "version"_a)
      .def(
          "store",
          [](Engine& engine, const std::string& op, const std::string& key, nb::bytes value, int64_t timeout_ms,
             bool ends_with_generation) {
            const std::string text(value.c_str(), value.size());
            const StoreReply reply = value_or_throw(
                without_gil([&] { return engine.store(op, key, text, timeout_ms, ends_with_generation); }));
            return std::tuple(reply.answered, reply.interrupted, reply.ok, to_bytes(reply.value));
          },
          "op"_a, "key"_a, "value"_a, "timeout_ms"_a, "ends_with_generation"_a = true,
          "(answered, interrupted, ok, value)");
}

void bind_functions(nb::module_& module) {
  module.def(
      "delay_links", [](uint32_t ms) { comm::tcp::injected_delay_ms = ms; }, "ms"_a,
      "An injected fault: whatever this process sends to other nodes waits so long first; 0 ends it.");
  module.def(
      "digest",
      [](uintptr_t address, uint64_t bytes) {
        return without_gil([&] { return checksum(reinterpret_cast<const void*>(address), bytes); });
      },
      "address"_a, "bytes"_a, "XXH3 of a piece of memory.");
  module.def(
      "digest_pieces",
      [](const std::vector<std::pair<uintptr_t, uint64_t>>& pieces, unsigned threads) {
        std::vector<Piece> memory;
        memory.reserve(pieces.size());
        for (const auto& [address, bytes] : pieces) {
          memory.push_back({reinterpret_cast<const void*>(address), bytes});
        }
        return without_gil([&] { return digest_of(memory, threads); });
      },
      "pieces"_a, "threads"_a,
      "64 bits that depend on all pieces (address, bytes), in their order; at most `threads` read at once.");
  module.def(
      "mix_seed",
      [](nb::args parts) {
        std::vector<uint64_t> values;
        for (nb::handle part : parts) {
          values.push_back(nb::cast<uint64_t>(part));
        }
        return data::mix_seed(values);
      },
      "64 bits that depend on all `parts` (src/data/order/seeds.h); each of them has 64 bits.");
  module.def(
      "samples_at",
      [](uint64_t seed, uint64_t position, uint64_t count, uint64_t dataset_size) {
        std::vector<uint64_t> out(count);
        data::samples_at(seed, position, count, dataset_size, out.data());
        return out;
      },
      "seed"_a, "position"_a, "count"_a, "dataset_size"_a,
      "The samples at positions position..position+count-1 of the job's order (src/data/order/sample_order.h).");
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_values(module);
  nb::class_<Engine> engine(module, "Engine", "The engine inside a rank (src/rank/engine/engine.h).");
  bind_told(engine);
  bind_membership(engine);
  bind_ends(engine);
  bind_state(engine);
  bind_shards(engine);
  bind_steps(engine);
  bind_capsules(engine);
  bind_functions(module);
}

}  // namespace keepstep::rank
