#include "checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace keepstep::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "keepstep checkpoint";
constexpr std::string_view kTail = ",\"xxh3_128\":\"";  // the sum of everything before it; then 32 digits, '"' and '}'
constexpr size_t kTailBytes = kTail.size() + 32 + 2;

Json encode_path(const StatePath& path) {
  Json json = Json::array();
  for (const auto& step : path) {
    std::visit([&](const auto& value) { json.push_back(value); }, step);
  }
  return json;
}

void encode_extent(const Extent& extent, Json& json) {
  json["file"] = extent.file;
  json["offset"] = extent.offset;
  json["bytes"] = extent.bytes;
}

Json encode_sums(const std::string& name, const FileSums& sums) {
  std::string chunks;
  for (const Sum& sum : sums.chunks) {
    chunks += to_hex(sum);
  }
  return {{"name", name}, {"bytes", sums.bytes}, {"xxh3_128", to_hex(sums.whole)}, {"chunks", chunks}};
}

// Why a manifest is invalid. Thrown only inside this file, where a tree of values is read.
struct Wrong {
  std::string why;
};

const Json& at(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) {
    throw Wrong{absl::StrFormat("'%s' is missing", key)};
  }
  return json.at(key);
}

uint64_t number(const Json& json, const char* what) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > INT64_MAX) {
    throw Wrong{absl::StrFormat("'%s' is no whole number from 0 on", what)};
  }
  return json.get<uint64_t>();
}

std::string text(const Json& json, const char* what) {
  if (!json.is_string()) {
    throw Wrong{absl::StrFormat("'%s' is no text", what)};
  }
  return json.get<std::string>();
}

// The same value, which must be a list. A pointer, because the result lives as long as the argument.
const Json* array(const Json* json, const char* what) {
  if (!json->is_array()) {
    throw Wrong{absl::StrFormat("'%s' is no list", what)};
  }
  return json;
}

std::vector<int64_t> numbers(const Json& json, const char* what) {
  std::vector<int64_t> result;
  for (const Json& item : *array(&json, what)) {
    result.push_back(static_cast<int64_t>(number(item, what)));
  }
  if (result.size() > 64) {
    throw Wrong{absl::StrFormat("'%s' has %d dimensions", what, result.size())};
  }
  return result;
}

Sum sum(std::string_view hex, const char* what) {
  const std::optional<Sum> found = sum_from_hex(hex);
  if (!found) {
    throw Wrong{absl::StrFormat("'%s' is no sum of 32 hexadecimal digits", what)};
  }
  return *found;
}

FileSums parse_sums(const Json& json, std::string& name) {
  name = text(at(json, "name"), "name");
  FileSums sums;
  sums.bytes = number(at(json, "bytes"), "bytes");
  sums.whole = sum(text(at(json, "xxh3_128"), "xxh3_128"), "xxh3_128");
  const std::string chunks = text(at(json, "chunks"), "chunks");
  if (chunks.size() % 32 != 0 || chunks.size() / 32 != (sums.bytes + kChunkBytes - 1) / kChunkBytes) {
    throw Wrong{absl::StrFormat("'%s' of %d bytes has sums of %d chunks", name, sums.bytes, chunks.size() / 32)};
  }
  for (size_t i = 0; i < chunks.size(); i += 32) {
    sums.chunks.push_back(sum(std::string_view(chunks).substr(i, 32), "chunks"));
  }
  return sums;
}

Extent parse_extent(const Json& json) {
  return {.file = static_cast<uint32_t>(std::min<uint64_t>(number(at(json, "file"), "file"), UINT32_MAX)),
          .offset = number(at(json, "offset"), "offset"),
          .bytes = number(at(json, "bytes"), "bytes")};
}

StatePath parse_path(const Json& json) {
  StatePath path;
  for (const Json& step : *array(&json, "path")) {
    if (step.is_string()) {
      path.emplace_back(step.get<std::string>());
    } else {
      path.emplace_back(static_cast<int64_t>(number(step, "path")));
    }
  }
  return path;
}

Manifest parse_body(const Json& json) {
  Manifest manifest;
  manifest.step = number(at(json, "step"), "step");
  manifest.world = static_cast<uint32_t>(std::min<uint64_t>(number(at(json, "world"), "world"), UINT32_MAX));
  manifest.created_s = static_cast<int64_t>(number(at(json, "created"), "created"));
  manifest.job = text(at(json, "job"), "job");
  manifest.token = number(at(json, "token"), "token");
  if (number(at(json, "chunk_bytes"), "chunk_bytes") != kChunkBytes) {
    throw Wrong{absl::StrFormat("chunks of another size than %d bytes", kChunkBytes)};
  }
  std::string name;
  manifest.metadata = parse_sums(at(json, "metadata"), name);
  for (const Json& file : *array(&at(json, "files"), "files")) {
    manifest.sums.push_back(parse_sums(file, name));
    manifest.layout.files.push_back(name);
  }
  for (const Json& item : *array(&at(json, "tensors"), "tensors")) {
    TensorEntry tensor;
    tensor.dtype = text(at(item, "dtype"), "dtype");
    tensor.shape = numbers(at(item, "shape"), "shape");
    tensor.path = parse_path(at(item, "path"));
    for (const Json& entry : *array(&at(item, "parts"), "parts")) {
      Part part;
      part.offsets = numbers(at(entry, "offsets"), "offsets");
      part.lengths = numbers(at(entry, "lengths"), "lengths");
      part.extent = parse_extent(entry);
      part.data = number(at(entry, "data"), "data");
      tensor.parts.push_back(std::move(part));
    }
    manifest.layout.tensors[text(at(item, "name"), "name")] = std::move(tensor);
  }
  for (const Json& item : *array(&at(json, "objects"), "objects")) {
    manifest.layout.objects[text(at(item, "name"), "name")] = {.path = parse_path(at(item, "path")),
                                                               .extent = parse_extent(item)};
  }
  return manifest;
}

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t bytes = metadata.bytes;
  for (const FileSums& file : sums) {
    bytes += file.bytes;
  }
  return bytes;
}

std::string encode_manifest(const Manifest& manifest) {
  Json json = {{"format", kFormat},       {"version", kManifestVersion},   {"step", manifest.step},
               {"world", manifest.world}, {"created", manifest.created_s}, {"job", manifest.job},
               {"token", manifest.token}, {"chunk_bytes", kChunkBytes}};
  json["metadata"] = encode_sums(".metadata", manifest.metadata);
  Json& files = json["files"] = Json::array();
  for (size_t i = 0; i < manifest.layout.files.size(); ++i) {
    files.push_back(encode_sums(manifest.layout.files[i], manifest.sums.at(i)));
  }
  Json& tensors = json["tensors"] = Json::array();
  for (const auto& [name, tensor] : manifest.layout.tensors) {
    Json parts = Json::array();
    for (const Part& part : tensor.parts) {
      Json entry = {{"offsets", part.offsets}, {"lengths", part.lengths}};
      encode_extent(part.extent, entry);
      entry["data"] = part.data.value_or(part.extent.offset);
      parts.push_back(std::move(entry));
    }
    tensors.push_back({{"name", name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"path", encode_path(tensor.path)},
                       {"parts", std::move(parts)}});
  }
  Json& objects = json["objects"] = Json::array();
  for (const auto& [name, object] : manifest.layout.objects) {
    Json entry = {{"name", name}, {"path", encode_path(object.path)}};
    encode_extent(object.extent, entry);
    objects.push_back(std::move(entry));
  }
  // Names come from a user's state dict; invalid UTF-8 in them is replaced instead of thrown.
  std::string out = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.pop_back();
  const std::string own = to_hex(sum_of(std::as_bytes(std::span(out))));
  out.append(kTail).append(own).append("\"}");
  return out;
}

StatusOr<Manifest> parse_manifest(std::span<const std::byte> bytes) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // The version first: a newer format may have its sum elsewhere.
  const Json json = Json::parse(all, nullptr, false);
  if (json.is_object() && json.contains("format") && json["format"] == kFormat && json.contains("version") &&
      json["version"].is_number_unsigned() && json["version"].get<uint64_t>() > kManifestVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "it has version %d of the format, this keepstep reads up to %d: a newer keepstep wrote it, use that one",
        json["version"].get<uint64_t>(), kManifestVersion));
  }
  if (all.size() < kTailBytes || all.substr(all.size() - kTailBytes, kTail.size()) != kTail || json.is_discarded()) {
    return absl::DataLossError(absl::StrFormat("it is cut off or was overwritten (%d bytes)", all.size()));
  }
  const std::string own = to_hex(sum_of(bytes.first(all.size() - kTailBytes)));
  if (all.substr(all.size() - 34, 32) != own) {
    return absl::DataLossError(absl::StrFormat("it is not what was written: its sum is %s, %s was written down", own,
                                               all.substr(all.size() - 34, 32)));
  }
  Manifest manifest;
  try {
    if (text(at(json, "format"), "format") != kFormat) {
      throw Wrong{"'format' is something else"};
    }
    if (number(at(json, "version"), "version") != kManifestVersion) {
      throw Wrong{"'version' is none that ever was"};
    }
    manifest = parse_body(json);
  } catch (const Wrong& wrong) {
    return absl::InvalidArgumentError(absl::StrFormat("it is no manifest of a checkpoint: %s", wrong.why));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrFormat("it is no manifest of a checkpoint: %s", error.what()));
  }
  std::vector<uint64_t> sizes;
  for (const FileSums& file : manifest.sums) {
    sizes.push_back(file.bytes);
  }
  KEEPSTEP_RETURN_IF_ERROR(check_layout(manifest.layout, sizes));
  return manifest;
}

}  // namespace keepstep::checkpoint
