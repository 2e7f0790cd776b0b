// Writes one large object into a bucket: parts sent in parallel, joined at the end.
//
// append copies into a part; one of `parallel` threads sends a full part while the next one fills, and append waits
// while all are busy: at most `parallel` + 1 parts are in memory. An object that fits into one part is a plain PUT at
// commit.
//
// A writer that did not finish (its process was killed, the server was unreachable for too long) leaves its upload
// behind. The next writer of the same key and part size resumes it: a part is not sent again if its size, its MD5 and,
// where the server stores it, its CRC match the bytes at hand. Servers that encrypt with keys of their own (SSE-KMS)
// return no MD5: there everything is sent again. A writer dropped without an error aborts its upload.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/object_store.h"
#include "checkpoint/s3/listing.h"
#include "checkpoint/s3/s3_client.h"

namespace keepstep::checkpoint {

class S3Writer final : public ObjectWriter {
 public:
  S3Writer(S3Client& client, std::string key, uint64_t part_bytes, int parallel);
  ~S3Writer() override;

  Status append(std::span<const std::byte> bytes) override;
  StatusOr<std::string> commit() override;

  // For tests: parts of an earlier writer that were not sent again.
  int parts_kept() const { return parts_kept_; }

 private:
  struct Part {
    int number = 0;
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };
  struct Sent {
    std::string etag;
    std::string crc32c;
  };

  Status fail(Status status);
  Status begin_upload();
  Status hand_over();  // gives the full part to a thread
  void work();
  StatusOr<Sent> send(const Part& part);
  StatusOr<std::string> put_whole();
  StatusOr<std::string> complete();
  StatusOr<std::string> find_completed(const std::string& expected, const Status& otherwise);
  void stop_threads();

  S3Client& client_;
  const std::string key_;
  const uint64_t part_bytes_;
  const int parallel_;

  Part current_;
  uint64_t total_ = 0;
  int next_number_ = 1;
  bool ended_ = false;    // committed or failed: accepts nothing more
  bool given_up_ = true;  // the upload is of no use to a later writer
  std::string upload_;    // its id; empty: not begun
  std::map<int, UploadedPart> earlier_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable bell_;
  std::vector<Part> waiting_;
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  int busy_ = 0;
  bool stopping_ = false;
  Status state_;
  std::map<int, Sent> sent_;
  int parts_kept_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace keepstep::checkpoint
