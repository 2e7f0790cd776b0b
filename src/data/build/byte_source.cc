#include "data/build/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fd.h"

namespace keepstep::data {
namespace {

class PlainSource : public ByteSource {
 public:
  PlainSource(std::string path, Fd fd, uint64_t begin) : path_(std::move(path)), fd_(std::move(fd)), position_(begin) {}

  StatusOr<size_t> read(char* out, size_t most) override {
    while (true) {
      const ssize_t got = pread(fd_.get(), out, most, static_cast<off_t>(position_));
      if (got >= 0) {
        position_ += static_cast<uint64_t>(got);
        return static_cast<size_t>(got);
      }
      if (errno != EINTR) {
        return errno_status(absl::StrFormat("read '%s' at byte %d", path_, position_));
      }
    }
  }

  uint64_t position() const override { return position_; }

 private:
  std::string path_;
  Fd fd_;
  uint64_t position_;
};

// What gzip and Zstandard share: compressed bytes from the file, one buffer at a time.
class CompressedSource : public ByteSource {
 public:
  CompressedSource(std::string path, std::unique_ptr<ByteSource> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  uint64_t position() const override { return file_->position(); }

 protected:
  // Whether there is compressed input left; refills `input_` from the file if that is used up.
  StatusOr<bool> has_input() {
    if (next_ == filled_) {
      KEEPSTEP_ASSIGN_OR_RETURN(filled_, file_->read(input_.data(), input_.size()));
      next_ = 0;
    }
    return next_ < filled_;
  }

  Status damaged(const char* kind, const std::string& what) const {
    return absl::DataLossError(absl::StrFormat("'%s': damaged %s data before byte %d: %s", path_, kind,
                                               file_->position() - (filled_ - next_), what));
  }

  Status truncated(const char* kind) const {
    return absl::DataLossError(
        absl::StrFormat("'%s' is truncated: its %s data end in the middle, at byte %d; was it copied completely?",
                        path_, kind, file_->position()));
  }

  std::array<char, size_t{256} << 10> input_;
  size_t next_ = 0;
  size_t filled_ = 0;

 private:
  std::string path_;
  std::unique_ptr<ByteSource> file_;
};

class GzipSource : public CompressedSource {
 public:
  using CompressedSource::CompressedSource;
  ~GzipSource() override { inflateEnd(&stream_); }

  Status start() {
    constexpr int kGzipOnly = 16;
    return inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK ? absl::OkStatus()
                                                                 : absl::ResourceExhaustedError("no memory for zlib");
  }

  StatusOr<size_t> read(char* out, size_t most) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(most, size_t{1} << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      KEEPSTEP_ASSIGN_OR_RETURN(const bool more, has_input());
      if (!more) {
        return between_members_ ? StatusOr<size_t>(size_t{0}) : truncated("gzip");
      }
      if (between_members_ && (any_member_ && input_[next_] == 0)) {  // padding, which gzip(1) skips as well
        ++next_;
        continue;
      }
      between_members_ = false;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + next_);
      stream_.avail_in = static_cast<uInt>(filled_ - next_);
      const int code = inflate(&stream_, Z_NO_FLUSH);
      next_ = filled_ - stream_.avail_in;
      if (code == Z_STREAM_END) {
        inflateReset(&stream_);
        between_members_ = true;
        any_member_ = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return damaged("gzip", stream_.msg != nullptr ? stream_.msg : "zlib cannot read them");
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool between_members_ = true;
  bool any_member_ = false;
};

class ZstdSource : public CompressedSource {
 public:
  using CompressedSource::CompressedSource;
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }

  // A frame may ask for a window of up to 128 MiB (ZSTD_WINDOWLOG_LIMIT_DEFAULT): more is refused, not allocated.
  Status start() {
    context_ = ZSTD_createDCtx();
    return context_ != nullptr ? absl::OkStatus() : absl::ResourceExhaustedError("no memory for zstd");
  }

  StatusOr<size_t> read(char* out, size_t most) override {
    ZSTD_outBuffer output{out, most, 0};
    while (output.pos == 0) {
      KEEPSTEP_ASSIGN_OR_RETURN(const bool more, has_input());
      if (!more && between_frames_) {
        return size_t{0};
      }
      ZSTD_inBuffer input{input_.data(), filled_, next_};
      const size_t left = ZSTD_decompressStream(context_, &output, &input);
      next_ = input.pos;
      if (ZSTD_isError(left) != 0) {
        return damaged("zstd", ZSTD_getErrorName(left));
      }
      between_frames_ = left == 0;
      if (!more && output.pos == 0 && !between_frames_) {
        return truncated("zstd");
      }
    }
    return output.pos;
  }

 private:
  ZSTD_DCtx* context_ = nullptr;
  bool between_frames_ = true;
};

template <typename Source>
StatusOr<std::unique_ptr<ByteSource>> started(const std::string& path, std::unique_ptr<ByteSource> file) {
  auto source = std::make_unique<Source>(path, std::move(file));
  KEEPSTEP_RETURN_IF_ERROR(source->start());
  return source;
}

}  // namespace

StatusOr<std::unique_ptr<ByteSource>> ByteSource::open(const std::string& path, Compression compression,
                                                       uint64_t begin) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno_status(absl::StrFormat("open '%s'", path));
  }
  (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  auto file = std::make_unique<PlainSource>(path, std::move(fd), begin);
  switch (compression) {
    case Compression::kGzip:
      return started<GzipSource>(path, std::move(file));
    case Compression::kZstd:
      return started<ZstdSource>(path, std::move(file));
    case Compression::kNone:
      break;
  }
  return file;
}

}  // namespace keepstep::data
