// Binds the messages between Python and the agent (messages/rank_messages.h), field by field.

#include "bindings/messages.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "bindings/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using namespace messages;

void bind_fault(nb::module_& module) {
  nb::class_<Fault>(module, "Fault", "A fault to carry out, parsed by the agent.")
      .def(
          "__init__",
          [](Fault* self, std::string key, std::string text, std::string kind, std::string phase, std::string what,
             bool on_spare, bool late, std::optional<uint32_t> rank, std::optional<uint64_t> step,
             std::optional<double> probability, std::optional<uint64_t> seed, std::optional<uint64_t> times,
             std::optional<double> seconds, std::optional<double> factor, std::optional<uint64_t> ms,
             std::optional<uint64_t> mib) {
            new (self) Fault{std::move(key),
                             std::move(text),
                             std::move(kind),
                             std::move(phase),
                             std::move(what),
                             on_spare,
                             late,
                             rank,
                             step,
                             probability,
                             seed,
                             times,
                             seconds,
                             factor,
                             ms,
                             mib};
          },
          "key"_a, "text"_a, "kind"_a, "phase"_a, "what"_a = "", "on_spare"_a = false, "late"_a = false,
          "rank"_a = nb::none(), "step"_a = nb::none(), "probability"_a = nb::none(), "seed"_a = nb::none(),
          "times"_a = nb::none(), "seconds"_a = nb::none(), "factor"_a = nb::none(), "ms"_a = nb::none(),
          "mib"_a = nb::none())
      .def_ro("key", &Fault::key, "Tells faults of a job apart.")
      .def_ro("text", &Fault::text, "As the user gave it.")
      .def_ro("kind", &Fault::kind)
      .def_ro("phase", &Fault::phase)
      .def_ro("what", &Fault::what)
      .def_ro("on_spare", &Fault::on_spare)
      .def_ro("late", &Fault::late, "It came while the job ran: a step that is past means the next one.")
      .def_ro("rank", &Fault::rank)
      .def_ro("step", &Fault::step)
      .def_ro("probability", &Fault::probability)
      .def_ro("seed", &Fault::seed)
      .def_ro("times", &Fault::times)
      .def_ro("seconds", &Fault::seconds)
      .def_ro("factor", &Fault::factor)
      .def_ro("ms", &Fault::ms)
      .def_ro("mib", &Fault::mib);
}

void bind_welcome(nb::module_& module) {
  nb::class_<Welcome>(module, "Welcome", "What the agent says of the job to a worker that comes.")
      .def_ro("spare", &Welcome::spare)
      .def_ro("functions", &Welcome::functions, "Recoverable functions that are over in this job.")
      .def_ro("seed", &Welcome::seed)
      .def_ro("check_all", &Welcome::check_all, "All steps' digests of a rank that joins are checked.")
      .def_ro("digests", &Welcome::digests, "auto, on or off.")
      .def_ro("digest_every", &Welcome::digest_every, "Steps; 0: never.")
      .def_ro("world", &Welcome::world)
      .def_ro("several_nodes", &Welcome::several_nodes)
      .def_ro("elastic", &Welcome::elastic)
      .def_ro("health_check", &Welcome::health_check)
      .def_ro("learn", &Welcome::learn, "The agent wants to know what the script imports.")
      .def_ro("term_is_notice", &Welcome::term_is_notice, "SIGTERM from outside is for the agent.")
      .def_ro("rings", &Welcome::rings, "Path of the socket for rings of batches; empty: there is none.")
      .def_ro("background_writer", &Welcome::background_writer, "The same of the process that writes checkpoints.")
      .def_ro("rank_variables", &Welcome::rank_variables, "Names of environment variables that follow from a rank.")
      .def_ro("inject", &Welcome::inject, "Faults that may still come.");
}

}  // namespace

void bind_messages(nb::module_& module) {
  bind_fault(module);
  bind_welcome(module);
}

template <typename Message>
void tell(Engine& engine, const Message& message) {
  throw_if_error(without_gil([&] { return engine.agent().send(message); }));
}

void bind_told(nb::class_<Engine>& engine) {
  engine
      .def(
          "tell_parked",
          [](Engine& self, std::optional<std::tuple<bool, double, std::string>> rehearsed, uint32_t functions) {
            Parked parked;
            parked.functions = functions;
            if (rehearsed.has_value()) {
              auto& [done, seconds, because] = *rehearsed;
              parked.rehearsed = Rehearsed{done, seconds, std::move(because)};
            }
            tell(self, parked);
          },
          "rehearsed"_a, "functions"_a,
          "It waits for a rank. How a rehearsal went: done, seconds, because; and how many recoverable functions are "
          "over for it.")
      .def(
          "tell_recoverable", [](Engine& self, double timeout_s) { tell(self, Recoverable{timeout_s}); }, "timeout_s"_a,
          "It entered a recoverable function; 0: without a limit on leaving it.")
      .def(
          "tell_preload",
          [](Engine& self, std::vector<std::string> modules, std::string path) {
            tell(self, Preload{std::move(modules), std::move(path)});
          },
          "modules"_a, "path"_a, "What the script imported beyond the zygote.")
      .def(
          "tell_paused", [](Engine& self) { tell(self, Paused{}); },
          "It heard that the world changes, and is about to exit.")
      .def(
          "tell_crashed", [](Engine& self, std::string traceback) { tell(self, Crashed{std::move(traceback)}); },
          "traceback"_a, "The process is about to exit.")
      .def(
          "tell_injected",
          [](Engine& self, std::string key, std::string detail, bool last) {
            tell(self, Injected{std::move(key), std::move(detail), last, monotonic_ns()});
          },
          "key"_a, "detail"_a, "last"_a, "This fault is carried out now.")
      .def(
          "tell_note",
          [](Engine& self, std::string event, uint64_t step, std::string because, std::string where) {
            tell(self, Note{std::move(event), step, std::move(because), std::move(where)});
          },
          "event"_a, "step"_a, "because"_a, "where"_a, "A line for the journal.")
      .def(
          "tell_useful",
          [](Engine& self, uint32_t ranks, std::vector<uint32_t> sizes) {
            tell(self, Useful{ranks, std::move(sizes)});
          },
          "ranks"_a, "sizes"_a, "How many ranks the job's batches feed.")
      .def(
          "tell_unfit",
          [](Engine& self, std::string check, std::string measured, std::string limit, bool counts) {
            tell(self, Unfit{std::move(check), std::move(measured), std::move(limit), counts});
          },
          "check"_a, "measured"_a, "limit"_a, "counts"_a, "Its health check failed; it is about to exit.")
      .def(
          "tell_publication",
          [](Engine& self, std::string name, uint64_t version, int memory) {
            const Publish message{std::move(name), version};
            throw_if_error(without_gil([&] { return self.agent().send(message, std::span<const int>(&memory, 1)); }));
          },
          "name"_a, "version"_a, "memory"_a,
          "Hands a publication to the agent: a descriptor of sealed memory, which stays the caller's.")
      .def(
          "tell_saved",
          [](Engine& self, uint64_t version, uint32_t generation, std::string where, double seconds, int64_t left_out,
             std::vector<int64_t> left_out_steps) {
            tell(self, Saved{version, generation, std::move(where), seconds, left_out, std::move(left_out_steps)});
          },
          "version"_a, "generation"_a, "where"_a, "seconds"_a = 0.0, "left_out"_a = 0,
          "left_out_steps"_a = std::vector<int64_t>(),
          "Any process can load this version. `generation` 0: it was saved in another start of the job; `left_out`: "
          "how many saves before it failed; `left_out_steps`: the last of them.");
}

}  // namespace keepstep::rank
