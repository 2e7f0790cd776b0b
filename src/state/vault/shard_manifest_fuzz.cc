// libFuzzer: a manifest of arbitrary bytes is refused, or is sound and means the same after it is written again. Built
// with -DKEEPSTEP_FUZZ=ON.

#include "base/check.h"
#include "state/vault/shard_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace keepstep;
  const auto manifest = state::parse_shard_manifest({reinterpret_cast<const char*>(data), size});
  if (!manifest.ok()) {
    KEEPSTEP_CHECK(!manifest.status().message().empty(), "refused without a reason");
    return 0;
  }
  const std::vector<uint64_t> starts = state::shard_starts(manifest->shards);
  for (size_t index = 0; index < manifest->shards.size(); ++index) {
    const brain::ShardEntry& entry = manifest->shards[index];
    KEEPSTEP_CHECK(brain::fits(entry.box, entry.shape), "a part outside of its tensor");
    KEEPSTEP_CHECK(starts[index] <= starts[index + 1], "too many bytes");
  }
  const auto text = state::write_shard_manifest(*manifest);
  KEEPSTEP_CHECK(text.ok() && state::parse_shard_manifest(*text).value() == *manifest, "not the same again");
  // A source that has what it lists can supply all of it, each part separately: parts of one tensor may overlap.
  const std::vector<brain::ShardSource> sources = {{0, manifest->version, manifest->shards}};
  for (const brain::ShardEntry& need : manifest->shards) {
    KEEPSTEP_CHECK(brain::plan_reshard({need}, sources, {.version = manifest->version}).has_value(), "no plan");
  }
  return 0;
}
