// A manifest is read back as it was written, or refused: truncated, changed, of another version, or impossible.
#include "checkpoint/manifest.h"

#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::HasSubstr;

FileSums sums_of(uint64_t bytes) {
  SumStream stream;
  stream.add(as_span(content(bytes, bytes)));
  return stream.finish();
}

Manifest example() {
  Manifest manifest{.step = 120, .world = 2, .created_s = 1'700'000'000, .job = "job \"x\"\n", .token = 7};
  manifest.layout.files = {"__0_0.7-1.distcp", "__1_0.7-1.distcp"};
  manifest.sums = {sums_of(5'000'000), sums_of(900)};
  manifest.metadata = sums_of(12);
  TensorEntry& weight = manifest.layout.tensors["model.weight"];
  weight.dtype = "float32";
  weight.shape = {4, 6};
  weight.path = {"model", "weight"};
  weight.parts = {{{0, 0}, {2, 6}, {0, 100, 1000, {}}, 164}, {{2, 0}, {2, 6}, {1, 0, 800, {}}, 64}};
  manifest.layout.tensors["scalar"] = {"int64", {}, {"scalar"}, {{{}, {}, {0, 2000, 100, {}}, 2064}}};
  manifest.layout.objects["opt.lr"] = {{"opt", int64_t{0}, "lr"}, {0, 4000, 500, {}}};
  return manifest;
}

StatusOr<Manifest> parse(const std::string& text) { return parse_manifest(as_span(text)); }

TEST(Manifest, ComesBackAsItWas) {
  const std::string text = encode_manifest(example());
  const auto manifest = parse(text);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, 120U);
  EXPECT_EQ(manifest->job, "job \"x\"\n");
  EXPECT_EQ(manifest->bytes(), 5'000'912U);
  EXPECT_EQ(manifest->sums[0].chunks, example().sums[0].chunks);
  EXPECT_EQ(manifest->sums[0].chunks.size(), 2U);
  const TensorEntry& weight = manifest->layout.tensors.at("model.weight");
  EXPECT_EQ(weight.parts[1].offsets, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(weight.parts[1].data, 64U);
  EXPECT_EQ(manifest->layout.objects.at("opt.lr").path, example().layout.objects["opt.lr"].path);
  EXPECT_EQ(encode_manifest(*manifest), text);
}

TEST(Manifest, OneThatIsNotWholeIsNone) {
  const std::string text = encode_manifest(example());
  for (size_t bytes = 0; bytes < text.size(); bytes += 7) {
    EXPECT_EQ(parse(text.substr(0, bytes)).status().code(), absl::StatusCode::kDataLoss) << bytes;
  }
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_FALSE(parse(changed).ok()) << at;
  }
}

std::string sealed(std::string body) {  // a body with a correct sum
  body.pop_back();
  return body + ",\"xxh3_128\":\"" + to_hex(sum_of(as_span(body))) + "\"}";
}

TEST(Manifest, OneOfANewerVersionIsRefusedWithItsVersion) {
  for (const std::string text : {R"({"format":"keepstep checkpoint","version":2,"new":"things"})",
                                 R"({"format":"keepstep checkpoint","version":99})"}) {
    const auto manifest = parse(text);
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(text_of(manifest.status()), HasSubstr("reads up to 1"));
  }
}

TEST(Manifest, WhatCannotBeIsRefused) {
  EXPECT_EQ(parse(sealed("{\"a\":1}")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parse(sealed("{\"format\":\"another\"}")).status().code(), absl::StatusCode::kInvalidArgument);
  const auto refused = [](const std::function<void(Manifest&)>& change) {
    Manifest manifest = example();
    change(manifest);
    return text_of(parse(encode_manifest(manifest)).status());
  };
  EXPECT_THAT(refused([](Manifest& m) { m.layout.tensors["model.weight"].parts[0].lengths = {5, 6}; }),
              HasSubstr("'model.weight' has shape [4, 6]"));
  EXPECT_THAT(refused([](Manifest& m) { m.layout.tensors["model.weight"].parts[1].extent.bytes = 901; }),
              HasSubstr("outside of it"));
  EXPECT_THAT(refused([](Manifest& m) { m.layout.tensors["model.weight"].parts[0].data = 1090; }),
              HasSubstr("does not fit"));
  EXPECT_THAT(refused([](Manifest& m) { m.layout.tensors["model.weight"].parts[0].extent.file = 2; }),
              HasSubstr("not listed"));
  EXPECT_THAT(refused([](Manifest& m) { m.layout.tensors["model.weight"].shape = {INT64_MAX, INT64_MAX}; }),
              HasSubstr("model.weight"));
  EXPECT_THAT(refused([](Manifest& m) { m.sums[0].chunks.pop_back(); }), HasSubstr("sums of 1 chunks"));
  EXPECT_THAT(refused([](Manifest& m) { m.layout.tensors["model.weight"].dtype = "float3"; }),
              HasSubstr("does not fit"));
}

TEST(Sums, OfAStreamAreThoseOfTheWhole) {
  const std::string bytes = content(3, 2 * kChunkBytes + 12345);
  SumStream stream;
  for (size_t at = 0, bite = 1; at < bytes.size(); at += bite, bite = bite * 3 % 700'001 + 1) {
    stream.add(as_span(bytes).subspan(at, std::min(bite, bytes.size() - at)));
  }
  const FileSums sums = stream.finish();
  EXPECT_EQ(sums.bytes, bytes.size());
  EXPECT_EQ(sums.whole, sum_of(as_span(bytes)));
  ASSERT_EQ(sums.chunks.size(), 3U);
  EXPECT_EQ(sums.chunks[1], sum_of(as_span(bytes).subspan(kChunkBytes, kChunkBytes)));
  EXPECT_EQ(sum_from_hex(to_hex(sums.whole)), sums.whole);
  EXPECT_EQ(to_hex(sum_of({})), "99aa06d3014798d86001c324468d497f");  // xxhsum -H2 of empty input
}

}  // namespace
}  // namespace keepstep::checkpoint
