#include "data/corpus/pack_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/token.h"
#include "data/corpus/write_all.h"

namespace keepstep::data {
namespace {

constexpr char kMagic[8] = {'K', 'S', 'P', 'A', 'C', 'K', 0, 0};
constexpr uint64_t kVersion = 1;

struct Raw {
  char magic[8];
  uint64_t version;
  uint64_t key;
  uint64_t capacity;
  uint64_t rows;
  uint64_t pieces;
  uint64_t tokens;
  uint64_t cut;
  uint64_t skipped;
  uint64_t checksum;
};
static_assert(sizeof(Raw) == PackHeader::kBytes);

uint64_t checksum_of(const Raw& raw) { return checksum(&raw, offsetof(Raw, checksum)); }

template <typename T>
T number_at(std::span<const std::byte> file, uint64_t offset) {
  T number;
  std::memcpy(&number, file.data() + offset, sizeof(T));
  return number;
}

uint64_t begins_offset(const PackHeader& header) { return PackHeader::kBytes + 8 * (header.rows + 1); }
uint64_t counts_offset(const PackHeader& header) { return begins_offset(header) + 8 * header.pieces; }

Status write_tables(const Fd& fd, const std::string& name, const Raw& raw, const PackPlan& plan) {
  const auto put = [&](const void* data, size_t bytes) {
    return write_all(fd.get(), static_cast<const std::byte*>(data), bytes, name);
  };
  KEEPSTEP_RETURN_IF_ERROR(put(&raw, sizeof(raw)));
  KEEPSTEP_RETURN_IF_ERROR(put(plan.starts.data(), 8 * plan.starts.size()));
  std::vector<uint64_t> begins(plan.pieces.size());
  std::vector<uint32_t> counts(plan.pieces.size());
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    begins[i] = plan.pieces[i].begin;
    counts[i] = plan.pieces[i].count;
  }
  KEEPSTEP_RETURN_IF_ERROR(put(begins.data(), 8 * begins.size()));
  KEEPSTEP_RETURN_IF_ERROR(put(counts.data(), 4 * counts.size()));
  return make_durable(fd, name);
}

}  // namespace

StatusOr<PackHeader> PackHeader::parse(std::span<const std::byte> file, const std::string& name) {
  Raw raw;
  if (file.size() < sizeof(raw)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' has %d bytes; a packing plan begins with %d. Delete it: it is made again", name, file.size(), kBytes));
  }
  std::memcpy(&raw, file.data(), sizeof(raw));
  if (std::memcmp(raw.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is no plan of packing. Move it away", name));
  }
  if (raw.version != kVersion) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' has version %d; this keepstep reads %d. Delete it: it is made again", name, raw.version, kVersion));
  }
  const uint64_t room = file.size() - sizeof(raw);  // bounds both numbers before they are used in arithmetic
  if (raw.checksum != checksum_of(raw) || raw.rows >= room / 8 || raw.pieces > room / 12 ||
      8 * (raw.rows + 1) + 12 * raw.pieces != room || raw.capacity < 2 || raw.capacity > kMaxPackCapacity) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' is damaged: %d bytes, and its header says %d rows and %d pieces. Delete it: it is made again", name,
        file.size(), raw.rows, raw.pieces));
  }
  return PackHeader{raw.key, raw.capacity, raw.rows, raw.pieces, raw.tokens, raw.cut, raw.skipped};
}

Status read_row(std::span<const std::byte> file, const std::string& name, const PackHeader& header, uint64_t tokens,
                uint64_t row, std::vector<PackPiece>& pieces) {
  const auto damaged = [&] {
    return absl::DataLossError(absl::StrFormat(
        "'%s' is damaged or changed since it was opened: row %d is none. Delete it: it is made again", name, row));
  };
  const auto first = number_at<uint64_t>(file, PackHeader::kBytes + 8 * row);
  const auto end = number_at<uint64_t>(file, PackHeader::kBytes + 8 * (row + 1));
  if (first > end || end > header.pieces || end - first > header.capacity) {
    return damaged();
  }
  pieces.clear();
  uint64_t left = header.capacity;
  for (uint64_t i = first; i < end; ++i) {
    const PackPiece piece{number_at<uint64_t>(file, begins_offset(header) + 8 * i),
                          number_at<uint32_t>(file, counts_offset(header) + 4 * i)};
    if (piece.count > left || piece.begin > tokens || piece.count > tokens - piece.begin) {
      return damaged();
    }
    left -= piece.count;
    pieces.push_back(piece);
  }
  return absl::OkStatus();
}

Status write_pack_file(const std::string& path, uint64_t key, uint64_t capacity, const PackPlan& plan) {
  Raw raw = {{}, kVersion, key, capacity, plan.rows(), plan.pieces.size(), plan.tokens, plan.cut, plan.skipped, 0};
  std::memcpy(raw.magic, kMagic, sizeof(kMagic));
  raw.checksum = checksum_of(raw);
  std::string partial;  // its name, if it needs one
  Fd fd(::open(folder_of(path).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644));
  if (!fd.valid()) {  // not every file system can do this
    partial = absl::StrFormat("%s.partial-%016x", path, random_number());
    fd.reset(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  }
  if (!fd.valid()) {
    return errno_status(absl::StrFormat("create the plan of packing '%s' (another folder: plan_folder=)", path));
  }
  Status written = write_tables(fd, path, raw, plan);
  if (written.ok()) {
    const std::string from = partial.empty() ? absl::StrFormat("/proc/self/fd/%d", fd.get()) : partial;
    if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0 && errno != EEXIST) {
      written = errno_status(absl::StrFormat("give '%s' its name", path));
    }
  }
  if (!partial.empty()) {
    (void)unlink(partial.c_str());
  }
  KEEPSTEP_RETURN_IF_ERROR(written);
  return make_folder_durable(path);
}

StatusOr<PackFile> PackFile::open(const std::string& path, uint64_t key) {
  PackFile opened;
  KEEPSTEP_ASSIGN_OR_RETURN(opened.file_, MappedFile::open(path));
  KEEPSTEP_ASSIGN_OR_RETURN(opened.header_, PackHeader::parse(opened.file_.bytes(), path));
  KEEPSTEP_RETURN_IF_ERROR(opened.file_.check());
  if (opened.header_.key != key) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' was made from something else (key %016x, not %016x). Delete it: it is made again", path,
                        opened.header_.key, key));
  }
  return opened;
}

Status PackFile::row(uint64_t row, uint64_t tokens, std::vector<PackPiece>& pieces) const {
  Status read = read_row(file_.bytes(), path(), header_, tokens, row, pieces);
  KEEPSTEP_RETURN_IF_ERROR(file_.check());  // has the better message for a truncated file
  return read;
}

}  // namespace keepstep::data
