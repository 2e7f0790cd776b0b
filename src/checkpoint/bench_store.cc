// keepstep_store_bench URL MEBIBYTES ROUNDS: how fast one object of that size is written to a store and read back, as
// JSON. tests/servers/throughput.py runs it alongside curl.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/bench.h"
#include "checkpoint/object_store.h"

namespace keepstep::checkpoint {
namespace {

Status run(const char* url, size_t bytes, uint64_t part_bytes) {
  StoreOptions options;
  options.part_bytes = part_bytes;
  KEEPSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, open_store(url, options));
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::byte>((i * 2654435761u) >> 11);
  }
  std::vector<std::byte> back(bytes);  // touches its pages before the clock starts
  constexpr size_t kPieceBytes = 4 << 20;
  const int64_t begin = monotonic_ns();
  KEEPSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectWriter> writer, store->create("bench/object", bytes));
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    KEEPSTEP_RETURN_IF_ERROR(writer->append(std::span(out).subspan(at, std::min(kPieceBytes, bytes - at))));
  }
  KEEPSTEP_RETURN_IF_ERROR(writer->commit().status());
  const int64_t written = monotonic_ns();
  KEEPSTEP_RETURN_IF_ERROR(store->read("bench/object", 0, back));
  const int64_t read = monotonic_ns();
  if (back != out) {
    return absl::DataLossError("what came back is not what was written");
  }
  KEEPSTEP_RETURN_IF_ERROR(store->remove("bench/object"));
  std::printf("{\"put_s\": %.4f, \"get_s\": %.4f}\n", seconds_of(written - begin), seconds_of(read - written));
  return absl::OkStatus();
}

}  // namespace
}  // namespace keepstep::checkpoint

int main(int count, char** values) {
  if (count != 4) {
    (void)std::fprintf(stderr, "keepstep_store_bench URL MEBIBYTES PART_MEBIBYTES\n");
    return 2;
  }
  keepstep::expect_ok(
      keepstep::checkpoint::run(values[1], keepstep::number_of(values[2]) << 20, keepstep::number_of(values[3]) << 20));
  return 0;
}
