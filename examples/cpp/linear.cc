// Linear regression by several processes that may die: include/keepstep/trainer.h, without Python.
//
//   build/keepstep run --no-python --nproc-per-node 4 build/keepstep_example_linear --until 500
//
// Meanwhile, kill a rank (kill -9), or have one killed: --inject kill:rank=2,step=20,phase=allreduce. The losses and
// the final parameters are the same, bit for bit. README.md in this folder says more.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "keepstep/trainer.h"

namespace {

struct Options {
  uint64_t until = 100;       // steps
  uint64_t features = 1000;   // number of parameters, without the bias
  uint64_t batch = 64;        // samples of all ranks in one step
  uint64_t dataset = 10'000;  // samples in an epoch
  std::string dump;           // PREFIX: each rank writes its parameters and momentum to PREFIX.RANK
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--dump") {
      options.dump = value;
      continue;
    }
    uint64_t* const number = name == "--until"      ? &options.until
                             : name == "--features" ? &options.features
                             : name == "--batch"    ? &options.batch
                             : name == "--dataset"  ? &options.dataset
                                                    : nullptr;
    if (number == nullptr) {
      return false;
    }
    *number = std::strtoull(value, nullptr, 10);
  }
  return argc % 2 == 1 && options.until > 0 && options.features > 0 && options.batch > 0 && options.dataset > 0;
}

// Data made from the seed: number `index` of `sample`, uniform in [-1, 1). (SplitMix64.)
float number_of(uint64_t seed, uint64_t sample, uint64_t index) {
  uint64_t x = seed + 0x9e3779b97f4a7c15 * (sample * 0x100000001b3 + index + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>(static_cast<double>((x ^ (x >> 31)) >> 11) / 4503599627370496.0 - 1.0);
}

// y = w.x + b, by gradient descent with momentum. The last element of each vector belongs to the bias.
struct Model {
  explicit Model(size_t features) : parameters(features + 1), momentum(features + 1), gradient(features + 1) {}

  // Adds the gradient of `sample`; returns its loss.
  double add(uint64_t seed, uint64_t sample, std::vector<float>& x) {
    const size_t features = x.size();
    const uint64_t truth = ~uint64_t{0};  // the sample whose numbers are the weights after the data
    double predicted = parameters[features];
    double target = 0.5;
    for (size_t i = 0; i < features; ++i) {
      x[i] = number_of(seed, sample, i);
      predicted += static_cast<double>(parameters[i]) * x[i];
      target += static_cast<double>(number_of(seed, truth, i)) * x[i];
    }
    const double error = predicted - target;
    for (size_t i = 0; i < features; ++i) {
      gradient[i] += static_cast<float>(error * x[i]);
    }
    gradient[features] += static_cast<float>(error);
    return 0.5 * error * error;
  }

  void descend(float rate, float keep) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      momentum[i] = keep * momentum[i] + gradient[i];
      parameters[i] -= rate * momentum[i];
    }
  }

  std::vector<float> parameters;
  std::vector<float> momentum;
  std::vector<float> gradient;
};

bool write(const std::string& path, const Model& model) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    std::perror(path.c_str());
    return false;
  }
  for (const std::vector<float>* values : {&model.parameters, &model.momentum}) {
    std::fwrite(values->data(), sizeof(float), values->size(), file);
  }
  return std::fclose(file) == 0;
}

int fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--until STEPS] [--features N] [--batch N] [--dataset N] [--dump PREFIX]\n",
                 argv[0]);
    return 2;
  }
  auto attached = keepstep::Trainer::attach();
  if (!attached.ok()) {
    return absl::IsCancelled(attached.status()) ? 0 : fail(attached.status());
  }
  keepstep::Trainer& trainer = **attached;

  // Do all of this before there is a rank: a spare has then done it when it is needed.
  Model model(options.features);
  std::vector<float> x(options.features);
  for (auto [name, values] : {std::pair("parameters", &model.parameters), std::pair("momentum", &model.momentum)}) {
    const auto status = trainer.protect(name, values->data(), {values->size()}, keepstep::DataType::kFloat32);
    if (!status.ok()) {
      return fail(status);
    }
  }

  const auto compared = trainer.compare("gradient", model.gradient.data(), model.gradient.size() * sizeof(float));
  if (!compared.ok()) {
    return fail(compared);
  }

  const float rate = 0.5F / static_cast<float>(options.features);
  while (trainer.next_step(options.until)) {
    const std::vector<uint64_t> samples = trainer.samples(options.batch, options.dataset);
    std::fill(model.gradient.begin(), model.gradient.end(), 0.0F);
    double loss = 0;
    for (const uint64_t sample : samples) {
      loss += model.add(trainer.seed(), sample, x);
    }
    const auto reduced = trainer.communicator()
                             .all_reduce(model.gradient.data(), model.gradient.size(), keepstep::DataType::kFloat32)
                             .wait();
    if (!reduced.ok()) {
      continue;  // next_step knows why, and how to continue
    }
    for (float& value : model.gradient) {
      value /= static_cast<float>(options.batch);
    }
    trainer.record_loss(loss, samples.size());
    (void)trainer.log("samples_" + std::to_string(trainer.rank()), samples);
    const auto committed = trainer.commit([&] {
      model.descend(rate, 0.9F);
      return absl::OkStatus();
    });
    if (committed.ok() && trainer.rank() == 0 && trainer.version() % 100 == 0) {
      std::printf("step %llu: loss %.9g\n", static_cast<unsigned long long>(trainer.version()), trainer.loss());
    }
  }
  if (absl::IsCancelled(trainer.status())) {
    return 0;  // the job ended without this process
  }
  if (!trainer.status().ok()) {
    return fail(trainer.status());
  }
  return options.dump.empty() || write(options.dump + "." + std::to_string(trainer.rank()), model) ? 0 : 1;
}
