#include "checkpoint/range_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "checkpoint/layout.h"

namespace keepstep::checkpoint {
namespace {

// A box as runs: `count` runs of `bytes` each, ascending in the file.
struct Runs {
  const BoxRead* box = nullptr;
  uint64_t count = 0;
  uint64_t bytes = 0;
  size_t outer = 0;                    // dimensions that are iterated; the inner ones belong to a run
  std::vector<uint64_t> part_strides;  // in bytes, of the part
  uint64_t first = 0;                  // in the file, of the first run
  uint64_t end = 0;                    // end of the last run

  // Where run `index` is, in the file and in memory.
  void place(uint64_t index, uint64_t& in_file, std::byte*& in_memory) const {
    in_file = first;
    in_memory = box->into;
    for (size_t i = outer; i-- > 0;) {
      const auto length = static_cast<uint64_t>(box->lengths[i]);
      const uint64_t at = index % length;
      index /= length;
      in_file += at * part_strides[i];
      in_memory += static_cast<int64_t>(at) * box->strides[i];
    }
  }
};

Status bad(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("a box that cannot be read: %s", why));
}

StatusOr<Runs> runs_of(const BoxRead& box, const StoredFiles& stored) {
  const size_t dims = box.part_lengths.size();
  if (box.file >= stored.files.size() || box.offsets.size() != dims || box.lengths.size() != dims ||
      box.strides.size() != dims || box.element_bytes == 0) {
    return bad("its file or its dimensions");
  }
  Runs runs{.box = &box};
  for (size_t i = 0; i < dims; ++i) {
    if (box.offsets[i] < 0 || box.lengths[i] < 0 || box.part_lengths[i] < 0 || box.offsets[i] > box.part_lengths[i] ||
        box.lengths[i] > box.part_lengths[i] - box.offsets[i]) {
      return bad("it reaches out of its part");
    }
  }
  const StoredFile& file = stored.files[box.file];
  const std::optional<uint64_t> elements = volume_of(box.part_lengths);
  if (!elements || *elements > (UINT64_MAX >> 1) / box.element_bytes || box.data > file.bytes ||
      *elements * box.element_bytes > file.bytes - box.data) {
    return bad("its part reaches out of its file");
  }
  runs.part_strides.resize(dims);
  uint64_t stride = box.element_bytes;
  for (size_t i = dims; i-- > 0;) {
    runs.part_strides[i] = stride;
    stride *= static_cast<uint64_t>(box.part_lengths[i]);
  }
  runs.bytes = box.element_bytes;
  runs.outer = dims;
  // A dimension belongs to the run while the run so far fills all of the part's next dimension, in file and in memory.
  while (runs.outer > 0) {
    const size_t i = runs.outer - 1;
    const bool together = runs.part_strides[i] == runs.bytes &&
                          (box.lengths[i] == 1 || box.strides[i] == static_cast<int64_t>(runs.bytes));
    if (!together) {
      break;
    }
    runs.bytes *= static_cast<uint64_t>(box.lengths[i]);
    --runs.outer;
  }
  if (runs.outer == dims && dims > 0 && box.lengths[dims - 1] > 1) {
    return bad("its innermost stride is not one element");
  }
  runs.count = 1;
  runs.first = box.data;
  uint64_t last = 0;
  for (size_t i = 0; i < dims; ++i) {
    runs.first += static_cast<uint64_t>(box.offsets[i]) * runs.part_strides[i];
    if (i < runs.outer) {
      runs.count *= static_cast<uint64_t>(box.lengths[i]);
      last += box.lengths[i] > 0 ? static_cast<uint64_t>(box.lengths[i] - 1) * runs.part_strides[i] : 0;
    }
  }
  if (runs.bytes == 0) {
    runs.count = 0;
  }
  runs.end = runs.first + last + runs.bytes;
  return runs;
}

// The first run that ends after `position` in the file.
uint64_t first_behind(const Runs& runs, uint64_t position) {
  uint64_t low = 0;
  uint64_t high = runs.count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    uint64_t in_file = 0;
    std::byte* in_memory = nullptr;
    runs.place(middle, in_file, in_memory);
    if (in_file + runs.bytes > position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

struct Task {
  uint32_t file = 0;
  uint64_t chunk = 0;
  std::vector<uint32_t> runs;  // that hold a part of it
};

void scatter(const Runs& runs, uint64_t begin, std::span<const std::byte> chunk) {
  const uint64_t end = begin + chunk.size();
  for (uint64_t i = first_behind(runs, begin); i < runs.count; ++i) {
    uint64_t in_file = 0;
    std::byte* in_memory = nullptr;
    runs.place(i, in_file, in_memory);
    if (in_file >= end) {
      break;
    }
    const uint64_t from = std::max(in_file, begin);
    const uint64_t to = std::min(in_file + runs.bytes, end);
    std::memcpy(in_memory + (from - in_file), chunk.data() + (from - begin), to - from);
  }
}

// Where the whole chunk goes if one run takes all of it: then it is read directly into place.
std::byte* whole_into(const Task& task, const std::vector<Runs>& runs, uint64_t begin, uint64_t bytes) {
  if (task.runs.size() != 1) {
    return nullptr;
  }
  const Runs& only = runs[task.runs[0]];
  const uint64_t index = first_behind(only, begin);
  if (index == only.count) {
    return nullptr;
  }
  uint64_t in_file = 0;
  std::byte* in_memory = nullptr;
  only.place(index, in_file, in_memory);
  return in_file <= begin && in_file + only.bytes >= begin + bytes ? in_memory + (begin - in_file) : nullptr;
}

}  // namespace

uint64_t chunk_bytes(const StoredFile& file, uint64_t chunk) {
  return std::min(kChunkBytes, file.bytes - chunk * kChunkBytes);
}

Status read_chunk(const StoredFiles& stored, uint32_t file, uint64_t chunk, std::span<std::byte> into, size_t& source) {
  const StoredFile& wanted = stored.files[file];
  const uint64_t begin = chunk * kChunkBytes;
  Status first = absl::NotFoundError("there is no destination to read from");
  for (size_t i = 0; i < stored.sources.size(); ++i) {
    const StoredFiles::Source& from = stored.sources[i];
    Status status = absl::OkStatus();
    // Twice: bytes that were misread, not stored wrong, are right the second time.
    for (int attempt = 0; attempt < 2; ++attempt) {
      status = from.store->read(from.folder + wanted.name, begin, into);
      if (!status.ok()) {
        if (absl::IsOutOfRange(status)) {
          status = absl::OutOfRangeError(
              absl::StrFormat("%s: '%s%s' is truncated: it should have %d bytes, and ends before byte %d",
                              from.store->describe(), from.folder, wanted.name, wanted.bytes, begin + into.size()));
        }
        break;
      }
      if (wanted.chunks.empty()) {
        source = i;
        return status;
      }
      const Sum found = sum_of(into);
      if (found == wanted.chunks[chunk]) {
        source = i;
        return status;
      }
      status = absl::DataLossError(absl::StrFormat(
          "%s: chunk %d of '%s%s' (bytes %d to %d) is corrupt: its XXH3-128 is %s, the manifest says %s",
          from.store->describe(), chunk, from.folder, wanted.name, begin, begin + into.size(), to_hex(found),
          to_hex(wanted.chunks[chunk])));
    }
    if (absl::IsCancelled(status)) {
      return status;
    }
    if (i == 0) {
      first = status;
    }
  }
  return first;
}

StatusOr<ReadTally> read_boxes(const StoredFiles& stored, std::span<const BoxRead> boxes, unsigned threads) {
  std::vector<Runs> runs;
  runs.reserve(boxes.size());
  std::map<std::pair<uint32_t, uint64_t>, std::vector<uint32_t>> chunks;
  for (const BoxRead& box : boxes) {
    KEEPSTEP_ASSIGN_OR_RETURN(Runs found, runs_of(box, stored));
    if (found.count == 0) {
      continue;
    }
    for (uint64_t chunk = found.first / kChunkBytes; chunk * kChunkBytes < found.end; ++chunk) {
      // There may be chunks between two runs that hold nothing of the box.
      const uint64_t next = first_behind(found, chunk * kChunkBytes);
      uint64_t in_file = 0;
      std::byte* in_memory = nullptr;
      found.place(next, in_file, in_memory);
      if (in_file >= (chunk + 1) * kChunkBytes) {
        chunk = in_file / kChunkBytes - 1;
        continue;
      }
      chunks[{box.file, chunk}].push_back(static_cast<uint32_t>(runs.size()));
    }
    runs.push_back(std::move(found));
  }
  std::vector<Task> tasks;
  tasks.reserve(chunks.size());
  for (auto& [key, who] : chunks) {
    tasks.push_back({key.first, key.second, std::move(who)});
  }

  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  Status status = absl::OkStatus();
  ReadTally tally;
  const auto work = [&] {
    std::vector<std::byte> buffer;
    ReadTally own;
    for (size_t i = next.fetch_add(1); i < tasks.size() && !failed; i = next.fetch_add(1)) {
      const Task& task = tasks[i];
      const uint64_t begin = task.chunk * kChunkBytes;
      const uint64_t bytes = chunk_bytes(stored.files[task.file], task.chunk);
      std::byte* direct = whole_into(task, runs, begin, bytes);
      if (direct == nullptr) {
        buffer.resize(kChunkBytes);
      }
      const std::span<std::byte> into(direct != nullptr ? direct : buffer.data(), bytes);
      size_t source = 0;
      if (Status read = read_chunk(stored, task.file, task.chunk, into, source); !read.ok()) {
        const std::lock_guard lock(mutex);
        status.Update(read);
        failed = true;
        break;
      }
      ++own.chunks;
      own.bytes += bytes;
      own.elsewhere += source > 0 ? 1 : 0;
      if (direct == nullptr) {
        for (const uint32_t index : task.runs) {
          scatter(runs[index], begin, into);
        }
      }
    }
    const std::lock_guard lock(mutex);
    tally.chunks += own.chunks;
    tally.bytes += own.bytes;
    tally.elsewhere += own.elsewhere;
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min<size_t>(threads, tasks.size()); ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  if (!status.ok()) {
    return status;
  }
  return tally;
}

}  // namespace keepstep::checkpoint
