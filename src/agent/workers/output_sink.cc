#include "agent/workers/output_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "agent/workers/output_pump.h"
#include "base/log.h"

namespace keepstep::agent {
namespace {

constexpr std::array kFileNames = {"stdout.log", "stderr.log"};
constexpr std::array kConsoleNames = {"standard output", "standard error"};

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

Streams streams_of(const StreamsByRank& streams, std::optional<uint32_t> rank) {
  return rank ? streams.of(*rank) : streams.all;
}

bool contains(Streams streams, size_t which) { return (streams & (1 << which)) != 0; }

}  // namespace

void Console::write(size_t which, std::string_view text) {
  if (broken_[which]) {
    return;
  }
  const bool written = status_line_ != nullptr ? status_line_->print_above(text, fds_[which], &give_up_)
                                               : observe::write_console(fds_[which], text, &give_up_);
  if (!written) {
    broken_[which] = true;
    if (!give_up_) {
      spdlog::warn("{} was closed; what ranks print there from now on is dropped (training goes on)",
                   kConsoleNames[which]);
    }
  }
}

void OutputSink::assign(uint32_t rank, uint32_t generation) {
  if (rank_ == rank && generation_ == generation) {
    return;
  }
  rank_ = rank;
  generation_ = generation;
  for (size_t which : {0, 1}) {
    files_[which].reset();
    file_failed_[which] = false;
  }
}

void OutputSink::make_folder() {
  if (const std::string path = folder(); !path.empty()) {
    std::error_code ignored;  // the first line that needs the folder reports the error
    std::filesystem::create_directories(path, ignored);
  }
}

void OutputSink::write(size_t which, std::string_view text) {
  to_file(which, text);
  if (on_console(which)) {
    to_console(which, text);
  }
}

void OutputSink::write_last(size_t which, std::string_view text) {
  to_file(which, text);
  if (on_console(which)) {
    to_console(which, std::string(text) + "\n");
  }
}

void OutputSink::close(size_t which) { files_[which].reset(); }

std::string OutputSink::folder() const {
  if (rank_) {
    return log_folder(*spec_, *rank_, generation_);
  }
  if (spec_->log_dir.empty() || spec_->log_dir == "/dev/null") {
    return "";
  }
  return absl::StrFormat("%s/%s/spares/%d", spec_->log_dir, spec_->run_id, worker_);
}

void OutputSink::to_file(size_t which, std::string_view text) {
  if (file_failed_[which]) {
    return;
  }
  const std::string in = folder();
  if (in.empty()) {
    return;
  }
  const std::string path = in + "/" + kFileNames[which];
  if (!files_[which].valid()) {
    std::error_code error;
    std::filesystem::create_directories(in, error);
    files_[which].reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  if (!files_[which].valid() || !write_all(files_[which].get(), text)) {
    spdlog::error("'{}' cannot be written ({}); lines are missing there from here on", path, strerror(errno));
    file_failed_[which] = true;
  }
}

void OutputSink::to_console(size_t which, std::string_view text) {
  if (!prefixed(which)) {
    console_->write(which, text);
    return;
  }
  const std::string prefix =
      rank_ ? absl::StrFormat("[%s%d]:", spec_->role, *rank_) : absl::StrFormat("[%s:%s]:", spec_->role, name_);
  std::string lines;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const size_t length = newline == std::string_view::npos ? text.size() : newline + 1;
    if (!mid_line_[which]) {
      lines += prefix;
    }
    lines += text.substr(0, length);
    mid_line_[which] = newline == std::string_view::npos;
    text.remove_prefix(length);
  }
  console_->write(which, lines);
}

bool OutputSink::prefixed(size_t which) const {
  return !spec_->log_dir.empty() && contains(streams_of(spec_->tee, rank_), which);
}

bool OutputSink::on_console(size_t which) const {
  const auto& filter = spec_->local_ranks_filter;
  if (filter && (!rank_ || std::find(filter->begin(), filter->end(), *rank_) == filter->end())) {
    return false;
  }
  return spec_->log_dir.empty() || contains(streams_of(spec_->tee, rank_), which) ||
         !contains(streams_of(spec_->redirects, rank_), which);
}

}  // namespace keepstep::agent
