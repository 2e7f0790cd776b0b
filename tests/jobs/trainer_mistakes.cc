// A C++ program that uses include/keepstep/trainer.h wrongly, in the way that its argument names; "fine": correctly;
// "cut": correctly, but its connections to other nodes break once. It runs four steps of two ranks, each of which adds
// 1 to the weights.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "keepstep/trainer.h"

using keepstep::DataType;

namespace {

// As if a cable were cut: the kernel tells both ends.
void cut_connections() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6)) {
      (void)shutdown(fd, SHUT_RDWR);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "fine";
  auto attached = keepstep::Trainer::attach();
  if (!attached.ok()) {
    std::fprintf(stderr, "%s\n", attached.status().ToString().c_str());
    return 1;
  }
  keepstep::Trainer& trainer = **attached;
  const bool second = std::string(std::getenv("RANK")) == "1";  // these processes have a rank from the start
  std::vector<float> weights(mode == "shapes" && second ? 9 : 8);
  (void)trainer.protect("weights", weights.data(), {weights.size()}, DataType::kFloat32);
  std::vector<float> gradient(weights.size());
  bool failed = false;
  while (trainer.next_step(4)) {
    if (mode == "late" && absl::IsFailedPrecondition(trainer.protect("late", &failed, {}, DataType::kBool)) && second) {
      gradient[0] = 0;  // refused, which is no reason to stop
    }
    if (mode == "always" && second) {
      trainer.fail(absl::UnknownError("a bug in the program"));
      continue;
    }
    if (mode == "once" && second && !failed && trainer.step() == 3) {
      failed = true;
      trainer.fail(absl::AbortedError("something that passes"));  // must not be taken for an interruption
      continue;
    }
    if (mode == "cut" && second && !failed && trainer.step() == 3) {
      failed = true;
      cut_connections();
    }
    gradient.assign(gradient.size(), 0.5F);
    keepstep::Work reduced = trainer.communicator().all_reduce(gradient.data(), gradient.size(), DataType::kFloat32);
    if (mode != "unwaited" && !reduced.wait().ok()) {
      continue;
    }
    if (mode == "no-commit" && second) {
      continue;
    }
    if (mode == "outside" && trainer.step() == 2) {
      weights[3] += 1;
    }
    (void)trainer.log("ratio", std::numeric_limits<double>::infinity());
    (void)trainer.log("note", std::string("step done"));
    trainer.record_loss(second ? 2 : 1, 1);
    (void)trainer.commit([&] {
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] += gradient[i];
      }
      if (mode == "bad-update" && second && !failed && trainer.step() == 2) {
        failed = true;
        return absl::ResourceExhaustedError("no memory for the update");
      }
      if (mode == "in-update") {
        (void)trainer.communicator().barrier().wait();
      }
      return absl::OkStatus();
    });
    if (mode == "twice" && second) {
      (void)trainer.commit([] { return absl::OkStatus(); });
    }
  }
  if (!trainer.status().ok()) {
    std::fprintf(stderr, "%s\n", trainer.status().ToString().c_str());
    return 1;
  }
  std::printf("weights are %g\n", static_cast<double>(weights[7]));
  return 0;
}
