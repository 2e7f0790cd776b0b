// The processes that `keepstep bench rendezvous` starts: a coordinator, and many agents at once. Not for direct use.
//
// Both are real except for the workers: coordinator::Coordinator, and for each agent an agent::CoordinatorLink with a
// stream, a handshake and a copy of the rank table of its own. An agent here answers every order as if its workers had
// carried it out.
//
// The first line on standard input is a JSON object that describes the task; the following lines are words. Every
// answer is a JSON object on a line of standard output. Times are CLOCK_MONOTONIC in ns, comparable between processes.
//
//   {"role": "coordinator", "token", "ranks", "nodes", "journal"}   journal: a directory, or empty
//     -> {"event": "listening", "address"}; at the end of input {"event": "stopped", "cpu_s", "refused"}
//   {"role": "agents", "token", "address", "first_node", "nodes", "ranks", "ranks_per_node", "seed"}
//     -> {"event": "connected", "from_ns", "ns"}
//   join    all agents report their node            -> {"event": "spawned", "ns"} once all workers were ordered
//   ask     all workers wait at their first call that needs a rank
//   kill N  the first rank of node N dies           -> {"event": "killed", "ns"}
//   after ask and after kill, once the last agent
//     has decoded its table and named some peers    -> {"event": "tables", "generation", "ns", "bytes"}
//     and once the last was told to start           -> {"event": "activated", "generation", "ns"}
//   at the end of input                             -> {"event": "stopped", "cpu_s"}
// `bytes` is the size of the messages of the generation's Prepare, the largest of any agent.
#pragma once

namespace keepstep::cli {

int rendezvous_bench_main();

}  // namespace keepstep::cli
