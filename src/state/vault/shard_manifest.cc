#include "state/vault/shard_manifest.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace keepstep::state {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

constexpr std::array<std::pair<std::string_view, uint32_t>, 21> kElementBytes = {{
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"uint64", 8},
    {"int64", 8},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex32", 4},
    {"complex64", 8},
    {"complex128", 16},
}};

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  return absl::StrCat("'", absl::Utf8SafeCEscape(std::string(text.substr(0, kMaxShown))),
                      text.size() > kMaxShown ? "..." : "", "'");
}

// What is wrong with an entry considered alone; empty if nothing is. Its dtype is already known to be valid.
std::string defect(const brain::ShardEntry& entry) {
  if (entry.name.empty() || entry.name.size() > kMaxShardName) {
    return absl::StrCat("has a name of ", entry.name.size(), " bytes; 1 to ", kMaxShardName, " are allowed");
  }
  if (std::any_of(entry.name.begin(), entry.name.end(), [](unsigned char byte) { return byte < 0x20; })) {
    return "has control characters in its name";
  }
  if (entry.element_bytes == 0 || element_bytes(entry.dtype) != entry.element_bytes) {
    return absl::StrCat("has the dtype ", in_quotes(entry.dtype), ", which is none that state is kept in");
  }
  if (entry.shape.size() > kMaxShardDimensions) {
    return absl::StrCat("has ", entry.shape.size(), " dimensions; at most ", kMaxShardDimensions, " are allowed");
  }
  const std::optional<uint64_t> count = brain::elements(entry.shape);
  if (!count.has_value() || *count > kMaxBytes / entry.element_bytes) {
    return absl::StrCat("has the shape ", brain::describe_shape(entry.shape), ", which no memory can hold");
  }
  if (!brain::fits(entry.box, entry.shape)) {
    return absl::StrCat("has offsets ", brain::describe_shape(entry.box.offsets), " and lengths ",
                        brain::describe_shape(entry.box.lengths), ", which are no part of the shape ",
                        brain::describe_shape(entry.shape));
  }
  return "";
}

// Checks entries one by one, in the order of the manifest.
class Checker {
 public:
  Status add(const brain::ShardEntry& entry, size_t index) {
    std::string wrong = defect(entry);
    if (wrong.empty()) {
      bytes_ += brain::elements(entry.box) * entry.element_bytes;
      if (bytes_ > kMaxBytes) {
        wrong = "makes the bytes of all parts too many for any memory";
      }
    }
    if (wrong.empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("shard manifest: shards[", index, "] (", in_quotes(entry.name), ") ", wrong));
  }

 private:
  uint64_t bytes_ = 0;
};

Status check_all_differ(const std::vector<brain::ShardEntry>& shards) {
  std::vector<const brain::ShardEntry*> sorted;
  sorted.reserve(shards.size());
  for (const brain::ShardEntry& entry : shards) {
    sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(), [](const brain::ShardEntry* a, const brain::ShardEntry* b) {
    return std::tie(a->name, a->box) < std::tie(b->name, b->box);
  });
  for (size_t next = 1; next < sorted.size(); ++next) {
    const brain::ShardEntry& one = *sorted[next - 1];
    const brain::ShardEntry& other = *sorted[next];
    if (one.name == other.name && (one.dtype != other.dtype || one.shape != other.shape)) {
      return absl::InvalidArgumentError(absl::StrCat("shard manifest: ", in_quotes(one.name), " is ", one.dtype,
                                                     brain::describe_shape(one.shape), " and ", other.dtype,
                                                     brain::describe_shape(other.shape)));
    }
    if (one.name == other.name && one.box == other.box) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard manifest: ", brain::describe(one.box), " of ", in_quotes(one.name), " is listed twice"));
    }
  }
  return absl::OkStatus();
}

// Reads the text token by token; stops at the first token that is out of place.
class ManifestParser : public nlohmann::json_sax<json> {
 public:
  Status status() const { return status_; }
  ShardManifest take() { return std::move(manifest_); }

  bool null() override { return out_of_place("null"); }
  bool boolean(bool value) override { return out_of_place(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return out_of_place(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return out_of_place(text.substr(0, 40)); }
  bool binary(binary_t&) override { return out_of_place("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    switch (position_) {
      case Position::kFormat:
        if (value != kShardManifestFormat) {
          return fail(value > kShardManifestFormat
                          ? absl::UnimplementedError(absl::StrCat("shard manifest: it has format ", value,
                                                                  " and this keepstep reads ", kShardManifestFormat,
                                                                  "; a newer one wrote it"))
                          : absl::InvalidArgumentError(absl::StrCat("shard manifest: there is no format ", value)));
        }
        position_ = Position::kTop;
        return true;
      case Position::kVersion:
        manifest_.version = value;
        position_ = Position::kTop;
        return true;
      case Position::kNumbers:
        if (numbers().size() >= kMaxShardDimensions) {
          return fail_entry(absl::StrCat("has more than ", kMaxShardDimensions, " dimensions"));
        }
        numbers().push_back(value);
        return true;
      default:
        return out_of_place(absl::StrCat(value));
    }
  }

  bool string(string_t& value) override {
    if (position_ != Position::kEntry || field_ > 1) {
      return out_of_place(in_quotes(value));
    }
    if (field_ == 0) {
      if (value.size() > kMaxShardName) {
        return fail_entry(
            absl::StrCat("has a name of ", value.size(), " bytes; at most ", kMaxShardName, " are allowed"));
      }
      entry_.name = value;
    } else {
      const std::optional<uint32_t> bytes = element_bytes(value);
      if (!bytes.has_value()) {
        return fail_entry(absl::StrCat("has the dtype ", in_quotes(value), ", which is none that state is kept in"));
      }
      entry_.dtype = value;
      entry_.element_bytes = *bytes;
    }
    ++field_;
    return true;
  }

  bool start_object(size_t) override {
    if (position_ != Position::kStart) {
      return out_of_place("an object");
    }
    position_ = Position::kTop;
    return true;
  }

  bool key(string_t& name) override {
    constexpr std::array<std::string_view, 3> kKeys = {"format", "version", "shards"};  // each once, in this order
    constexpr std::array<Position, 3> kPlaces = {Position::kFormat, Position::kVersion, Position::kShards};
    if (keys_ == kKeys.size() || name != kKeys[keys_]) {
      return fail(absl::InvalidArgumentError(
          absl::StrCat("shard manifest: there is ", in_quotes(name), " where ",
                       keys_ == kKeys.size() ? std::string("the end") : in_quotes(kKeys[keys_]), " should be")));
    }
    position_ = kPlaces[keys_++];
    return true;
  }

  bool end_object() override {
    if (keys_ != 3) {
      return fail(absl::InvalidArgumentError("shard manifest: it ends before 'format', 'version' and 'shards' came"));
    }
    position_ = Position::kEnd;
    return true;
  }

  bool start_array(size_t) override {
    if (position_ == Position::kShards) {
      position_ = Position::kBetween;
    } else if (position_ == Position::kBetween) {
      if (manifest_.shards.size() >= kMaxManifestShards) {
        return fail(absl::InvalidArgumentError(
            absl::StrCat("shard manifest: there are more than ", kMaxManifestShards, " shards")));
      }
      entry_ = {};
      field_ = 0;
      position_ = Position::kEntry;
    } else if (position_ == Position::kEntry && field_ >= 2 && field_ < kFields) {
      position_ = Position::kNumbers;
    } else {
      return out_of_place("a list");
    }
    return true;
  }

  bool end_array() override {
    if (position_ == Position::kNumbers) {
      ++field_;
      position_ = Position::kEntry;
    } else if (position_ == Position::kEntry) {
      if (field_ != kFields) {
        return fail_entry("ends before name, dtype, shape, offsets and lengths came");
      }
      if (const Status status = checker_.add(entry_, manifest_.shards.size()); !status.ok()) {
        return fail(status);
      }
      manifest_.shards.push_back(std::move(entry_));
      position_ = Position::kBetween;
    } else {  // the list of shards: no other list is open
      position_ = Position::kTop;
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(absl::InvalidArgumentError(absl::StrCat("shard manifest: no JSON from byte ", position, " on")));
  }

 private:
  enum class Position : uint8_t { kStart, kTop, kFormat, kVersion, kShards, kBetween, kEntry, kNumbers, kEnd };
  static constexpr int kFields = 5;

  std::vector<uint64_t>& numbers() {
    return field_ == 2 ? entry_.shape : field_ == 3 ? entry_.box.offsets : entry_.box.lengths;
  }
  bool fail(Status status) {
    status_ = std::move(status);
    return false;
  }
  bool fail_entry(const std::string& wrong) {
    return fail(absl::InvalidArgumentError(
        absl::StrCat("shard manifest: shards[", manifest_.shards.size(), "] (", in_quotes(entry_.name), ") ", wrong)));
  }
  bool out_of_place(const std::string& what) {
    if (position_ == Position::kEntry || position_ == Position::kNumbers) {
      constexpr std::array<const char*, kFields + 1> kNames = {"name", "dtype", "shape", "offsets", "lengths", "end"};
      return fail_entry(absl::StrCat("has ", what, " for its ", kNames[static_cast<size_t>(field_)]));
    }
    return fail(absl::InvalidArgumentError(absl::StrCat("shard manifest: there is ", what, " where it has no place")));
  }

  Position position_ = Position::kStart;
  size_t keys_ = 0;  // seen so far
  int field_ = 0;    // of the entry: the next one expected
  brain::ShardEntry entry_;
  Checker checker_;
  ShardManifest manifest_;
  Status status_;
};

Status check_length(size_t bytes) {
  if (bytes > kMaxManifestText) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard manifest: it has ", bytes, " bytes; at most ", kMaxManifestText, " are read"));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<uint32_t> element_bytes(std::string_view dtype) {
  const auto* const known = std::find_if(kElementBytes.begin(), kElementBytes.end(),
                                         [dtype](const auto& entry) { return entry.first == dtype; });
  return known == kElementBytes.end() ? std::nullopt : std::optional(known->second);
}

StatusOr<ShardManifest> parse_shard_manifest(std::string_view text) {
  KEEPSTEP_RETURN_IF_ERROR(check_length(text.size()));
  ManifestParser reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    return reader.status();
  }
  ShardManifest manifest = reader.take();
  KEEPSTEP_RETURN_IF_ERROR(check_all_differ(manifest.shards));
  return manifest;
}

StatusOr<std::string> write_shard_manifest(const ShardManifest& manifest) {
  if (manifest.shards.size() > kMaxManifestShards) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard manifest: ", manifest.shards.size(), " shards are more than ", kMaxManifestShards));
  }
  Checker checker;
  std::string text =
      absl::StrCat("{\"format\": ", kShardManifestFormat, ", \"version\": ", manifest.version, ", \"shards\": [");
  for (size_t index = 0; index < manifest.shards.size(); ++index) {
    const brain::ShardEntry& entry = manifest.shards[index];
    KEEPSTEP_RETURN_IF_ERROR(checker.add(entry, index));
    const json line = json::array({entry.name, entry.dtype, entry.shape, entry.box.offsets, entry.box.lengths});
    // Bytes that are not UTF-8 turn into another name, which the comparison detects.
    const std::string written = line.dump(-1, ' ', false, json::error_handler_t::replace);
    if (json::parse(written)[0] != entry.name) {
      return absl::InvalidArgumentError(absl::StrCat("shard manifest: shards[", index, "] (", in_quotes(entry.name),
                                                     ") has a name that is no UTF-8"));
    }
    absl::StrAppend(&text, index == 0 ? "" : ", ", written);
  }
  text += "]}";
  KEEPSTEP_RETURN_IF_ERROR(check_all_differ(manifest.shards));
  KEEPSTEP_RETURN_IF_ERROR(check_length(text.size()));
  return text;
}

std::vector<uint64_t> shard_starts(const std::vector<brain::ShardEntry>& shards) {
  std::vector<uint64_t> starts = {0};
  for (const brain::ShardEntry& entry : shards) {
    starts.push_back(starts.back() + brain::elements(entry.box) * entry.element_bytes);
  }
  return starts;
}

}  // namespace keepstep::state
