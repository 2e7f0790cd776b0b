#include "checkpoint/store_url.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "checkpoint/memory/protocol.h"
#include "checkpoint/object_store.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr size_t kMaxUrlBytes = 4096;

Status wrong(std::string_view url, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("the destination '%s' for checkpoints %s", url, why));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char low = absl::ascii_tolower(c);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

StatusOr<StoreUrl> parse_file(std::string_view url, std::string_view rest) {
  if (!rest.starts_with("/")) {
    return wrong(url, "names no folder by its absolute path; write it with three slashes: file:///data/run");
  }
  if (rest.find_first_of("?#") != std::string_view::npos) {
    return wrong(url, "has a '?' or '#'; in the name of a folder they are written %3F and %23");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::string folder, percent_decoded(rest));
  while (folder.size() > 1 && folder.back() == '/') {
    folder.pop_back();
  }
  const std::vector<std::string_view> parts = split(folder, '/');
  if (std::find(parts.begin(), parts.end(), "..") != parts.end()) {
    return wrong(url, "has '..' in it; write the folder's path as it is");
  }
  return FileUrl{std::move(folder)};
}

bool is_bucket_name(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
         });
}

Status check_endpoint(std::string_view url, std::string_view endpoint) {
  std::string_view host = endpoint;
  if (!take_prefix(host, "http://") && !take_prefix(host, "https://")) {
    return wrong(url, "has an endpoint that begins neither with http:// nor with https://");
  }
  if (host.ends_with('/')) {
    host.remove_suffix(1);
  }
  if (host.empty() || host.find_first_of("/?#@ ") != std::string_view::npos) {
    return wrong(url, "has an endpoint that is no http://HOST:PORT (no path, no user)");
  }
  return absl::OkStatus();
}

// Fills the values of the parameters that are known. `place`: the URL without them, for messages.
Status parse_query(std::string_view url, std::string_view place, std::string_view query,
                   const std::vector<std::pair<std::string_view, std::string*>>& known) {
  std::set<std::string_view> seen;
  for (const std::string_view field : split(query, '&')) {
    if (field.empty()) {
      continue;
    }
    const size_t equals = field.find('=');
    const std::string_view name = field.substr(0, equals);
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.first == name; });
    if (found == known.end()) {  // the message omits the value: it may be a secret
      std::vector<std::string> names;
      for (const auto& [each, value] : known) {
        names.emplace_back(each);
      }
      return absl::InvalidArgumentError(
          absl::StrFormat("the destination %s for checkpoints has an unknown parameter '%s'; known are %s. Keys and "
                          "secrets come from the environment or a profile, never from here",
                          place, name, absl::StrJoin(names, ", ")));
    }
    if (!seen.insert(name).second) {
      return wrong(url, absl::StrFormat("has '%s' twice", name));
    }
    KEEPSTEP_ASSIGN_OR_RETURN(*found->second,
                              percent_decoded(equals == std::string_view::npos ? "" : field.substr(equals + 1)));
    if (found->second->empty()) {
      return wrong(url, absl::StrFormat("has no value for '%s'", name));
    }
  }
  return absl::OkStatus();
}

StatusOr<StoreUrl> parse_memory(std::string_view url, std::string_view rest) {
  const size_t question = rest.find('?');
  MemoryUrl parsed{.name = std::string(rest.substr(0, question))};
  if (!memory::is_destination_name(parsed.name)) {
    return wrong(
        url, "names no memory; write memory://NAME, a letter and then letters, digits, '-', '.' and '_', at most 100");
  }
  std::string keep;
  KEEPSTEP_RETURN_IF_ERROR(parse_query(url, "memory://" + parsed.name,
                                       question == std::string_view::npos ? "" : rest.substr(question + 1),
                                       {{"drain", &parsed.drain}, {"drain_keep", &keep}}));
  if (!keep.empty() && (!absl::SimpleAtoi(keep, &parsed.drain_keep) || parsed.drain_keep == 0)) {
    return wrong(url, "has a drain_keep that is no number from 1 on");
  }
  if (!keep.empty() && parsed.drain.empty()) {
    return wrong(url, "has a drain_keep and no drain");
  }
  if (!parsed.drain.empty()) {
    KEEPSTEP_ASSIGN_OR_RETURN(const StoreUrl drain, parse_store_url(parsed.drain));
    if (std::holds_alternative<MemoryUrl>(drain)) {
      return wrong(url, "drains into memory; a drain is a folder or S3: drain=file:///data/run");
    }
  }
  return parsed;
}

StatusOr<StoreUrl> parse_s3(std::string_view url, std::string_view rest) {
  if (rest.find('#') != std::string_view::npos) {
    return wrong(url, "has a '#'; in a prefix it is written %23");
  }
  const size_t question = rest.find('?');
  const std::string_view path = rest.substr(0, question);
  const std::string_view query = question == std::string_view::npos ? "" : rest.substr(question + 1);
  S3Url parsed;
  const size_t slash = path.find('/');
  parsed.bucket = std::string(path.substr(0, slash));
  if (!is_bucket_name(parsed.bucket)) {
    return wrong(url, "names no bucket (3 to 63 letters, digits, '-', '.', '_'); write s3://bucket/prefix");
  }
  if (slash != std::string_view::npos) {
    KEEPSTEP_ASSIGN_OR_RETURN(std::string prefix, percent_decoded(path.substr(slash + 1)));
    while (!prefix.empty() && prefix.back() == '/') {
      prefix.pop_back();
    }
    if (!prefix.empty()) {
      if (const Status fit = check_key(prefix); !fit.ok()) {
        return wrong(url, text_of(fit));
      }
      parsed.prefix = prefix + "/";
    }
  }
  KEEPSTEP_RETURN_IF_ERROR(parse_query(url, absl::StrFormat("s3://%s", path), query,
                                       {{"region", &parsed.region},
                                        {"endpoint", &parsed.endpoint},
                                        {"addressing", &parsed.addressing},
                                        {"profile", &parsed.profile},
                                        {"ca_file", &parsed.ca_file},
                                        {"http", &parsed.http}}));
  if (!parsed.endpoint.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(check_endpoint(url, parsed.endpoint));
  }
  if (!parsed.addressing.empty() && parsed.addressing != "path" && parsed.addressing != "virtual") {
    return wrong(url, "has an addressing that is neither 'path' nor 'virtual'");
  }
  if (!parsed.http.empty() && parsed.http != "allow") {
    return wrong(url, "has an http that is not 'allow'");
  }
  return parsed;
}

}  // namespace

StatusOr<std::string> percent_decoded(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("'%s' has a '%%' without two hexadecimal digits; a percent sign itself is %%25", text));
      }
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') {
      return absl::InvalidArgumentError(absl::StrFormat("'%s' has a zero byte", text));
    }
    result += c;
  }
  return result;
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes)) {
      result += c;
    } else {
      result += '%';
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    }
  }
  return result;
}

StatusOr<StoreUrl> parse_store_url(std::string_view url) {
  if (url.size() > kMaxUrlBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the URL of a checkpoint destination is %d bytes long; at most %d are allowed", url.size(), kMaxUrlBytes));
  }
  std::string_view rest = url;
  if (take_prefix(rest, "file://")) {
    return parse_file(url, rest);
  }
  if (take_prefix(rest, "s3://")) {
    return parse_s3(url, rest);
  }
  if (take_prefix(rest, "memory://")) {
    return parse_memory(url, rest);
  }
  return wrong(url, "is of no known kind; write file:///folder, s3://bucket/prefix or memory://NAME");
}

}  // namespace keepstep::checkpoint
