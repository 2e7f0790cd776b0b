#include "checkpoint/owner.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_format.h"
#include "base/socket/tcp_socket.h"
#include "base/token.h"

namespace keepstep::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxOwnerBytes = 64 << 10;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Field 22 of /proc/PID/stat: when the process started, in ticks since boot. Empty if there is no such process, or it
// is dead and not yet reaped.
std::string start_time(int64_t pid) {
  const std::string stat = first_line(absl::StrFormat("/proc/%d/stat", pid));
  const size_t behind_name = stat.rfind(')');  // a name may contain spaces and parentheses
  if (behind_name == std::string::npos) {
    return {};
  }
  std::istringstream fields(stat.substr(behind_name + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
    if (i == 3 && (field == "Z" || field == "X")) {
      return {};
    }
  }
  return field;
}

// The kernel's id for this boot, and the namespace that pids belong to.
std::string machine() {
  struct stat pids{};
  stat("/proc/self/ns/pid", &pids);
  return absl::StrFormat("%s/%d", first_line("/proc/sys/kernel/random/boot_id"), pids.st_ino);
}

std::string process_of(int64_t pid) {
  const std::string start = start_time(pid);
  return start.empty() ? std::string() : absl::StrFormat("%s/%s", machine(), start);
}

std::string random_word() { return absl::StrFormat("%016x%016x", random_number(), random_number()); }

std::string encode(const OwnerRecord& owner) {
  const Json json = {
      {"format", "keepstep owner"}, {"version", 1},           {"token", owner.token},      {"claim", owner.claim},
      {"job", owner.job},           {"host", owner.host},     {"pid", owner.pid},          {"process", owner.process},
      {"renewed", owner.renewed_s}, {"lease", owner.lease_s}, {"released", owner.released}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

StatusOr<OwnerRecord> parse(const std::string& text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  OwnerRecord owner;
  try {
    if (json.at("format") != "keepstep owner" || json.at("version") != 1) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "'%s' of %s has a format that this keepstep does not know: a newer one wrote it?", kOwnerName, where));
    }
    owner.token = json.at("token").get<uint64_t>();
    owner.claim = json.at("claim").get<std::string>();
    owner.job = json.at("job").get<std::string>();
    owner.host = json.at("host").get<std::string>();
    owner.pid = json.at("pid").get<int64_t>();
    owner.process = json.at("process").get<std::string>();
    owner.renewed_s = json.at("renewed").get<int64_t>();
    owner.lease_s = json.at("lease").get<int64_t>();
    owner.released = json.at("released").get<bool>();
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrFormat("'%s' of %s cannot be read: %s. If no job writes there, remove it",
                                               kOwnerName, where, error.what()));
  }
  return owner;
}

struct Found {
  OwnerRecord owner;
  std::string etag;
};

StatusOr<Found> read(ObjectStore& store) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Object object, store.read_all(kOwnerName, kMaxOwnerBytes));
  KEEPSTEP_ASSIGN_OR_RETURN(OwnerRecord owner, parse(object.bytes, store.describe()));
  return Found{std::move(owner), object.etag};
}

Status taken(const ObjectStore& store, const OwnerRecord& by, uint64_t token) {
  return absl::AbortedError(absl::StrFormat(
      "%s was taken over by %s; this job had token %d and writes nothing more there. Two jobs must not write into one "
      "place: give one of them another",
      store.describe(), in_words(by), token));
}

}  // namespace

std::string in_words(const OwnerRecord& owner) {
  return absl::StrFormat("%s (pid %d on %s, token %d)",
                         owner.job.empty() ? std::string("a job") : absl::StrFormat("job '%s'", owner.job), owner.pid,
                         owner.host, owner.token);
}

bool is_gone(const OwnerRecord& owner, int64_t now_s) {
  if (owner.released) {
    return true;
  }
  const std::string here = machine() + "/";
  if (owner.process.starts_with(here)) {
    return process_of(owner.pid) != owner.process;
  }
  return now_s - owner.renewed_s > owner.lease_s;
}

StatusOr<OwnerRecord> read_owner(ObjectStore& store) {
  KEEPSTEP_ASSIGN_OR_RETURN(Found found, read(store));
  return std::move(found.owner);
}

StatusOr<std::unique_ptr<Owner>> Owner::claim(std::shared_ptr<ObjectStore> store, const OwnerOptions& given) {
  OwnerOptions options = given;
  if (!options.now_s) {
    options.now_s = [] { return static_cast<int64_t>(std::time(nullptr)); };
  }
  OwnerRecord record;
  record.job = options.job;
  record.host = host_name();
  record.pid = getpid();
  record.process = process_of(record.pid);
  record.lease_s = options.lease.count();
  for (int attempt = 0; attempt < 8; ++attempt) {
    record.claim = random_word();
    record.renewed_s = options.now_s();
    PutCondition condition = PutCondition::absent();
    record.token = 1;
    StatusOr<Found> found = read(*store);
    if (found.ok()) {
      const OwnerRecord& other = found->owner;
      const bool same_job = !record.job.empty() && other.job == record.job;
      const bool same_process = other.process == record.process && other.pid == record.pid;
      if (!same_job && !same_process && !is_gone(other, record.renewed_s)) {
        return absl::AbortedError(absl::StrFormat(
            "%s belongs to %s, which is still at work (it renewed %d s ago). Two jobs must not write to one "
            "destination: "
            "give this one another, or end that one",
            store->describe(), in_words(other), std::max<int64_t>(0, record.renewed_s - other.renewed_s)));
      }
      condition = PutCondition::matches(found->etag);
      record.token = other.token + 1;
    } else if (!absl::IsNotFound(found.status())) {
      return found.status();
    }
    const std::string text = encode(record);
    StatusOr<std::string> etag = store->put(kOwnerName, std::as_bytes(std::span(text)), condition);
    if (etag.ok()) {
      return std::unique_ptr<Owner>(new Owner(std::move(store), std::move(options), std::move(record), *etag));
    }
    if (!absl::IsAborted(etag.status())) {
      return etag.status();
    }
    // Somebody else was faster: look who.
  }
  return absl::AbortedError(absl::StrFormat("%s: several jobs try to own it at the same time", store->describe()));
}

Owner::Owner(std::shared_ptr<ObjectStore> store, OwnerOptions options, OwnerRecord record, std::string etag)
    : store_(std::move(store)),
      options_(std::move(options)),
      record_(std::move(record)),
      etag_(std::move(etag)),
      of_process_(getpid()) {
  if (options_.renew_in_background) {
    thread_ = std::jthread([this](const std::stop_token& stop) { renew_in_background(stop); });
  }
}

Owner::~Owner() {
  if (thread_.joinable() && of_process_ != getpid()) {
    thread_.detach();  // it belongs to the parent
  }
}

Status Owner::put(const OwnerRecord& record) {
  if (!lost_.ok()) {
    return lost_;
  }
  const std::string text = encode(record);
  StatusOr<std::string> etag = store_->put(kOwnerName, std::as_bytes(std::span(text)), PutCondition::matches(etag_));
  if (etag.ok()) {
    etag_ = *etag;
    record_ = record;
    return absl::OkStatus();
  }
  if (absl::IsAborted(etag.status()) || absl::IsNotFound(etag.status())) {
    StatusOr<Found> found = read(*store_);
    if (found.ok() && found->owner.claim == record_.claim && found->owner.token == record_.token) {
      etag_ = found->etag;  // an answer was lost: the record there is ours
      return absl::OkStatus();
    }
    if (!found.ok() && !absl::IsNotFound(found.status())) {
      return found.status();
    }
    lost_ = found.ok() ? taken(*store_, found->owner, record_.token)
                       : absl::NotFoundError(absl::StrFormat(
                             "%s: '%s' was removed while this job (token %d) wrote there; it writes nothing more",
                             store_->describe(), kOwnerName, record_.token));
    return lost_;
  }
  return etag.status();
}

Status Owner::renew() {
  const std::lock_guard lock(mutex_);
  OwnerRecord record = record_;
  record.renewed_s = options_.now_s();
  return put(record);
}

Status Owner::release(std::chrono::milliseconds limit) {
  if (of_process_ != getpid()) {
    return absl::OkStatus();
  }
  const std::jthread watch([&](const std::stop_token& stop) {
    std::unique_lock lock(waiting_);
    wake_.wait_for(lock, stop, limit, [] { return false; });
    if (!stop.stop_requested()) {
      store_->interrupt();
    }
  });
  thread_ = {};  // stops and waits
  const std::lock_guard lock(mutex_);
  OwnerRecord record = record_;
  record.renewed_s = options_.now_s();
  record.released = true;
  return put(record);
}

void Owner::renew_in_background(const std::stop_token& stop) {
  const auto pause = std::chrono::milliseconds(options_.lease) / 3;
  for (;;) {
    {
      std::unique_lock lock(waiting_);
      wake_.wait_for(lock, stop, pause, [] { return false; });
    }
    if (stop.stop_requested()) {
      return;
    }
    // A store that cannot be reached now may be reachable next time; the commit will report the outcome.
    const Status renewed = renew();
    if (absl::IsAborted(renewed) || absl::IsNotFound(renewed)) {
      return;
    }
  }
}

}  // namespace keepstep::checkpoint
