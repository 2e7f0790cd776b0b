#include "checkpoint/s3/s3_writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "checkpoint/keys.h"
#include "checkpoint/s3/digests.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr int kMaxParts = 10'000;  // limit of S3

}  // namespace

S3Writer::S3Writer(S3Client& client, std::string key, uint64_t part_bytes, int parallel)
    : client_(client), key_(std::move(key)), part_bytes_(part_bytes), parallel_(parallel) {}

S3Writer::~S3Writer() {
  stop_threads();
  if (!upload_.empty() && given_up_) {
    (void)abort_upload(client_, key_, upload_);  // on failure, remove_leftovers finds it
  }
}

// A failure that may be temporary leaves the upload for the next writer.
Status S3Writer::fail(Status status) {
  ended_ = true;
  given_up_ = !absl::IsUnavailable(status) && !absl::IsCancelled(status);
  return status;
}

Status S3Writer::append(std::span<const std::byte> bytes) {
  if (ended_) {
    return absl::FailedPreconditionError(absl::StrFormat("the writer of '%s' has ended", key_));
  }
  while (!bytes.empty()) {
    if (current_.bytes != nullptr && current_.size == part_bytes_) {
      if (Status handed = hand_over(); !handed.ok()) {
        return fail(std::move(handed));
      }
    }
    if (current_.bytes == nullptr) {
      const std::lock_guard lock(mutex_);
      if (spare_.empty()) {
        current_.bytes.reset(new std::byte[part_bytes_]);  // not filled with zeros first
      } else {
        current_.bytes = std::move(spare_.back());
        spare_.pop_back();
      }
      current_.size = 0;
      current_.number = next_number_++;
    }
    const size_t taken = std::min<size_t>(bytes.size(), part_bytes_ - current_.size);
    std::memcpy(current_.bytes.get() + current_.size, bytes.data(), taken);
    current_.size += taken;
    total_ += taken;
    bytes = bytes.subspan(taken);
  }
  return absl::OkStatus();
}

// Resumes the newest upload that an earlier writer left, or begins one.
Status S3Writer::begin_upload() {
  KEEPSTEP_ASSIGN_OR_RETURN(const Uploads uploads, list_uploads(client_, key_));
  const Upload* newest = nullptr;
  for (const Upload& each : uploads.list) {
    const bool fits = each.key == key_ && (each.algorithm.empty() || each.algorithm == "CRC32C");
    if (fits && (newest == nullptr || each.begun_s > newest->begun_s)) {
      newest = &each;
    }
  }
  if (newest != nullptr) {
    StatusOr<std::vector<UploadedPart>> parts = list_parts(client_, key_, newest->id);
    if (!parts.ok() && !absl::IsNotFound(parts.status())) {
      return parts.status();
    }
    // Parts of another size cannot be mixed with ours; parts with the same number are simply replaced.
    const bool ours = parts.ok() && std::all_of(parts->begin(), parts->end(),
                                                [&](const UploadedPart& part) { return part.bytes <= part_bytes_; });
    if (ours) {
      upload_ = newest->id;
      for (UploadedPart& part : *parts) {
        earlier_.emplace(part.number, std::move(part));
      }
      return absl::OkStatus();
    }
  }
  S3Call call{.what = absl::StrFormat("begin the upload of '%s'", key_), .method = "POST"};
  call.key = key_;
  call.query = {{"uploads", ""}};
  call.headers = {"content-type: application/octet-stream", "x-amz-checksum-algorithm: CRC32C"};
  call.xml = true;
  KEEPSTEP_ASSIGN_OR_RETURN(const S3Reply reply, client_.call(call));
  upload_ = reply.xml->root().text("UploadId");
  return upload_.empty() ? absl::DataLossError(absl::StrFormat("%s began the upload of '%s' and gave no id for it",
                                                               client_.location().describe(), key_))
                         : absl::OkStatus();
}

Status S3Writer::hand_over() {
  if (current_.number > kMaxParts) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' does not fit into %d parts of %d MiB; say how large it gets when it is created, or take larger parts",
        key_, kMaxParts, part_bytes_ >> 20));
  }
  if (upload_.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(begin_upload());
  }
  std::unique_lock lock(mutex_);
  bell_.wait(lock, [&] { return !state_.ok() || busy_ + static_cast<int>(waiting_.size()) < parallel_; });
  KEEPSTEP_RETURN_IF_ERROR(state_);
  waiting_.push_back(std::move(current_));
  current_ = Part{};
  if (static_cast<int>(threads_.size()) < parallel_ && busy_ + waiting_.size() > threads_.size()) {
    threads_.emplace_back([this] { work(); });
  }
  bell_.notify_all();
  return absl::OkStatus();
}

void S3Writer::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    bell_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return;
    }
    Part part = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    if (!state_.ok()) {
      continue;  // nobody will join it
    }
    ++busy_;
    lock.unlock();
    StatusOr<Sent> sent = send(part);
    lock.lock();
    --busy_;
    if (sent.ok()) {
      sent_[part.number] = *std::move(sent);
    } else if (state_.ok()) {
      state_ = sent.status();
    }
    spare_.push_back(std::move(part.bytes));
    bell_.notify_all();
  }
}

StatusOr<S3Writer::Sent> S3Writer::send(const Part& part) {
  const std::span<const std::byte> bytes(part.bytes.get(), part.size);
  std::string crc = crc32c_base64(bytes);
  const auto earlier = earlier_.find(part.number);
  if (earlier != earlier_.end() && earlier->second.bytes == part.size &&
      (earlier->second.crc32c.empty() || earlier->second.crc32c == crc) && earlier->second.etag == md5_hex(bytes)) {
    const std::lock_guard lock(mutex_);
    ++parts_kept_;
    return Sent{earlier->second.etag, std::move(crc)};
  }
  S3Call call{.what = absl::StrFormat("write part %d of '%s'", part.number, key_), .method = "PUT"};
  call.key = key_;
  call.query = {{"partNumber", absl::StrFormat("%d", part.number)}, {"uploadId", upload_}};
  call.headers = {"x-amz-checksum-crc32c: " + crc};
  call.body = bytes;
  KEEPSTEP_ASSIGN_OR_RETURN(const S3Reply reply, client_.call(call));
  std::string etag = unquoted(reply.answer.header("etag"));
  if (etag.empty()) {
    return absl::DataLossError(absl::StrFormat("%s took part %d of '%s' and gave no ETag for it",
                                               client_.location().describe(), part.number, key_));
  }
  return Sent{std::move(etag), std::move(crc)};
}

StatusOr<std::string> S3Writer::put_whole() {
  S3Call call{.what = absl::StrFormat("write '%s'", key_), .method = "PUT"};
  call.key = key_;
  call.body = std::span<const std::byte>(current_.bytes.get(), current_.size);
  call.headers = {"content-type: application/octet-stream", "x-amz-checksum-crc32c: " + crc32c_base64(call.body)};
  KEEPSTEP_ASSIGN_OR_RETURN(const S3Reply reply, client_.call(call));
  return unquoted(reply.answer.header("etag"));
}

StatusOr<std::string> S3Writer::commit() {
  if (ended_) {
    return absl::FailedPreconditionError(absl::StrFormat("the writer of '%s' has ended", key_));
  }
  StatusOr<std::string> etag = upload_.empty() && next_number_ <= 2 ? put_whole() : complete();
  if (!etag.ok()) {
    return fail(etag.status());
  }
  ended_ = true;
  given_up_ = false;
  return etag;
}

StatusOr<std::string> S3Writer::complete() {
  KEEPSTEP_RETURN_IF_ERROR(hand_over());
  std::vector<std::string> etags;
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  {
    std::unique_lock lock(mutex_);
    bell_.wait(lock, [&] { return !state_.ok() || static_cast<int>(sent_.size()) == next_number_ - 1; });
    KEEPSTEP_RETURN_IF_ERROR(state_);
    for (const auto& [number, sent] : sent_) {
      etags.push_back(sent.etag);
      body += absl::StrFormat(
          "<Part><ChecksumCRC32C>%s</ChecksumCRC32C><ETag>&quot;%s&quot;</ETag><PartNumber>%d</PartNumber></Part>",
          sent.crc32c, xml_escaped(sent.etag), number);
    }
  }
  body += "</CompleteMultipartUpload>";
  S3Call call{.what = absl::StrFormat("join the parts of '%s'", key_), .method = "POST"};
  call.key = key_;
  call.query = {{"uploadId", upload_}};
  call.headers = {"content-type: application/xml"};
  call.body = std::as_bytes(std::span(body.data(), body.size()));
  call.xml = true;
  StatusOr<S3Reply> reply = client_.call(call);
  if (absl::IsNotFound(reply.status())) {
    return find_completed(etag_of_parts(etags), reply.status());
  }
  KEEPSTEP_RETURN_IF_ERROR(reply.status());
  std::string etag = unquoted(reply->xml->root().text("ETag"));
  if (etag.empty()) {
    return find_completed(
        etag_of_parts(etags),
        absl::DataLossError(absl::StrFormat("%s joined '%s' and gave no ETag", client_.location().describe(), key_)));
  }
  return etag;
}

// The upload is gone: ended by our own first try, whose answer was lost and which may still be running, or by somebody
// else.
StatusOr<std::string> S3Writer::find_completed(const std::string& expected, const Status& otherwise) {
  S3Call call{.what = absl::StrFormat("look at '%s'", key_), .method = "HEAD"};
  call.key = key_;
  call.also = {404};
  for (std::chrono::milliseconds pause(100); pause < std::chrono::seconds(5); pause *= 2) {
    KEEPSTEP_ASSIGN_OR_RETURN(const S3Reply reply, client_.call(call));
    std::string etag = unquoted(reply.answer.header("etag"));
    const bool same_size = reply.answer.header("content-length") == absl::StrFormat("%d", total_);
    if (reply.answer.status / 100 == 2 && same_size && (expected.empty() || etag == expected)) {
      return etag;
    }
    if (!client_.pause(pause)) {
      return interrupted(client_.location().describe());
    }
  }
  return absl::AbortedError(absl::StrFormat(
      "the upload of '%s' was ended by somebody else before its parts were joined (%s). Do two jobs write there?", key_,
      text_of(otherwise)));
}

void S3Writer::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  bell_.notify_all();
  threads_.clear();
}

}  // namespace keepstep::checkpoint
