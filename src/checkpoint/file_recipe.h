// A checkpoint file as a recipe: literal bytes, and ranges of memory that is somewhere else.
//
// Every process that has the tensors (a rank, or the process that writes for it) writes the same file from the same
// recipe: what torch.save puts around a tensor is literal bytes, the tensor itself a range.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "checkpoint/object_store.h"
#include "checkpoint/sums.h"

namespace keepstep::checkpoint {

// A piece: literal bytes, or memory that must not change until the file is written.
using RecipePiece = std::variant<std::string, std::span<const std::byte>>;

struct FileRecipe {
  std::vector<RecipePiece> pieces;
  uint64_t bytes() const;
};

// Writes a file from pieces, in order. Like an ObjectWriter: one thread, and without a commit nothing remains. A writer
// that failed is finished: the failing call removes what it began before it returns, which may take as long as the
// store's retries.
class FileWriter {
 public:
  static StatusOr<FileWriter> create(ObjectStore& store, std::string_view key, uint64_t expected_bytes);

  Status append(std::span<const std::byte> bytes);
  uint64_t bytes() const { return bytes_; }
  StatusOr<FileSums> commit();  // durable; call once

 private:
  FileWriter(std::unique_ptr<ObjectWriter> writer, std::string key)
      : writer_(std::move(writer)), key_(std::move(key)) {}
  Status check_open() const;

  std::unique_ptr<ObjectWriter> writer_;
  std::string key_;
  SumStream sums_;
  uint64_t bytes_ = 0;
};

// The whole file at once.
StatusOr<FileSums> write_file(ObjectStore& store, std::string_view key, const FileRecipe& recipe);

}  // namespace keepstep::checkpoint
