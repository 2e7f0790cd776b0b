#include "checkpoint/file_recipe.h"

namespace keepstep::checkpoint {
namespace {

std::span<const std::byte> bytes_of(const RecipePiece& piece) {
  if (const auto* literal = std::get_if<std::string>(&piece)) {
    return std::as_bytes(std::span(*literal));
  }
  return std::get<std::span<const std::byte>>(piece);
}

}  // namespace

uint64_t FileRecipe::bytes() const {
  uint64_t bytes = 0;
  for (const RecipePiece& piece : pieces) {
    bytes += bytes_of(piece).size();
  }
  return bytes;
}

StatusOr<FileWriter> FileWriter::create(ObjectStore& store, std::string_view key, uint64_t expected_bytes) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> writer, store.create(key, expected_bytes));
  return FileWriter(std::move(writer), std::string(key));
}

Status FileWriter::append(std::span<const std::byte> bytes) {
  // In small bites, so that checksum and copy find the same bytes in the cache.
  constexpr size_t kBite = 1 << 20;
  constexpr size_t kPiece = 64 << 10;  // below this a piece of its own costs more than it could save
  KEEPSTEP_RETURN_IF_ERROR(check_open());
  const bool is_piece = bytes.size() >= kPiece;
  if (is_piece) {
    writer_->begin_piece();
  }
  while (!bytes.empty()) {
    const auto bite = bytes.first(std::min(bytes.size(), kBite));
    sums_.add(bite);
    if (Status status = writer_->append(bite); !status.ok()) {
      writer_.reset();
      return status;
    }
    bytes_ += bite.size();
    bytes = bytes.subspan(bite.size());
  }
  if (is_piece) {
    writer_->begin_piece();
  }
  return absl::OkStatus();
}

StatusOr<FileSums> FileWriter::commit() {
  KEEPSTEP_RETURN_IF_ERROR(check_open());
  const Status status = writer_->commit().status();
  writer_.reset();
  KEEPSTEP_RETURN_IF_ERROR(status);
  return sums_.finish();
}

Status FileWriter::check_open() const {
  return writer_ != nullptr ? absl::OkStatus()
                            : absl::FailedPreconditionError(absl::StrFormat("'%s' is written, or failed", key_));
}

StatusOr<FileSums> write_file(ObjectStore& store, std::string_view key, const FileRecipe& recipe) {
  KEEPSTEP_ASSIGN_OR_RETURN(FileWriter writer, FileWriter::create(store, key, recipe.bytes()));
  for (const RecipePiece& piece : recipe.pieces) {
    KEEPSTEP_RETURN_IF_ERROR(writer.append(bytes_of(piece)));
  }
  return writer.commit();
}

}  // namespace keepstep::checkpoint
