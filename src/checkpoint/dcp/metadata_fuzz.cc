// libFuzzer: a .metadata or a manifest of arbitrary bytes is refused, or describes parts that are inside their tensors.
// Built with -DKEEPSTEP_FUZZ=ON.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "checkpoint/dcp/metadata.h"
#include "checkpoint/manifest.h"

namespace {

void expect_inside(const keepstep::checkpoint::Layout& layout) {
  for (const auto& [name, tensor] : layout.tensors) {
    for (const auto& part : tensor.parts) {
      for (size_t i = 0; i < tensor.shape.size(); ++i) {
        KEEPSTEP_CHECK(
            part.offsets[i] >= 0 && part.lengths[i] >= 0 && part.offsets[i] + part.lengths[i] <= tensor.shape[i],
            "outside of its tensor");
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace keepstep::checkpoint;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto layout = dcp::read_metadata(bytes); layout.ok()) {
    expect_inside(*layout);
  }
  // A fuzzer does not find checksums.
  std::string text(reinterpret_cast<const char*>(data), size);
  text += ",\"xxh3_128\":\"" + to_hex(sum_of(bytes)) + "\"}";
  if (const auto manifest = parse_manifest(std::as_bytes(std::span(text))); manifest.ok()) {
    expect_inside(manifest->layout);
    const std::string again = encode_manifest(*manifest);
    KEEPSTEP_CHECK(parse_manifest(std::as_bytes(std::span(again))).ok(), "what is written must be readable");
  }
  return 0;
}
