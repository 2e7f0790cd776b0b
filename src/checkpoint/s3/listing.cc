#include "checkpoint/s3/listing.h"

#include <curl/curl.h>

#include <algorithm>

#include "checkpoint/keys.h"
#include "checkpoint/s3/digests.h"
#include "checkpoint/store_url.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr size_t kMaxPageBytes = 8 << 20;  // 1,000 keys of 1,024 bytes, percent-encoded, with everything about each
constexpr int kMaxPages = 20'000;

Status strange(S3Client& client, std::string_view what) {
  return absl::DataLossError(absl::StrFormat("the listing that %s gave %s", client.location().describe(), what));
}

// Keys arrive percent-encoded if the server says so (encoding-type=url): XML cannot hold every key.
StatusOr<std::string> decoded(const Xml::Element& page, const std::string& text) {
  if (page.text("EncodingType") != "url") {
    return text;
  }
  std::string spaced = text;
  std::replace(spaced.begin(), spaced.end(), '+', ' ');  // a literal plus is %2B
  return percent_decoded(spaced);
}

// Calls visit(page) for each page of the listing of `query`; `next(page)` adds the start of the next page to the query,
// and returns false after the last.
template <typename Visit, typename Next>
Status each_page(S3Client& client, S3Call call, const Visit& visit, const Next& next) {
  call.method = "GET";
  call.xml = true;
  call.max_body_bytes = kMaxPageBytes;
  const std::vector<std::pair<std::string, std::string>> query = call.query;
  for (int page = 0; page < kMaxPages; ++page) {
    KEEPSTEP_ASSIGN_OR_RETURN(const S3Reply reply, client.call(call));
    KEEPSTEP_RETURN_IF_ERROR(visit(reply));
    const Xml::Element root = reply.xml->root();
    if (root.text("IsTruncated") != "true") {
      return absl::OkStatus();
    }
    const std::vector<std::pair<std::string, std::string>> before = call.query;
    call.query = query;
    next(root, &call.query);
    if (call.query == before || call.query == query) {
      return strange(client, "goes round in circles");
    }
  }
  return strange(client, "has no end");
}

Status each_object_page(S3Client& client, const std::string& prefix, bool folders, int page_entries,
                        const std::function<Status(const Xml::Element& page)>& visit) {
  S3Call call{.what = absl::StrFormat("list '%s'", prefix)};
  call.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", client.location().prefix + prefix}};
  call.query.emplace_back("max-keys", absl::StrFormat("%d", page_entries));
  if (folders) {
    call.query.emplace_back("delimiter", "/");
  }
  return each_page(
      client, std::move(call), [&](const S3Reply& reply) { return visit(reply.xml->root()); },
      [](const Xml::Element& page, auto* query) {
        query->emplace_back("continuation-token", page.text("NextContinuationToken"));
      });
}

// The key without the store's prefix; a server must not return keys outside it.
StatusOr<std::string> own_key(S3Client& client, const Xml::Element& page, const std::string& raw,
                              std::string_view prefix) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string key, decoded(page, raw));
  const std::string& ours = client.location().prefix;
  if (!key.starts_with(ours) || !std::string_view(key).substr(ours.size()).starts_with(prefix)) {
    return strange(client, "has keys that were not asked for");
  }
  return key.substr(ours.size());
}

}  // namespace

StatusOr<std::vector<ObjectInfo>> list_objects(S3Client& client, std::string_view prefix, int page_entries) {
  std::vector<ObjectInfo> listed;
  const std::string begun(prefix);
  KEEPSTEP_RETURN_IF_ERROR(
      each_object_page(client, begun, false, page_entries, [&](const Xml::Element& page) -> Status {
        for (auto each = page.child("Contents"); each.valid(); each = each.next("Contents")) {
          KEEPSTEP_ASSIGN_OR_RETURN(std::string key, own_key(client, page, each.text("Key"), prefix));
          if (!check_key(key).ok()) {
            continue;  // no store wrote it: a console's folder marker, for example
          }
          if (listed.size() >= kMaxListed) {
            return too_many_listed(prefix, client.location().describe());
          }
          listed.push_back({std::move(key), number_of(each.text("Size")), unquoted(each.text("ETag")),
                            static_cast<int64_t>(parse_iso_time(each.text("LastModified"))) * 1'000'000'000});
        }
        return absl::OkStatus();
      }));
  std::sort(listed.begin(), listed.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.key < b.key; });
  return listed;
}

StatusOr<std::vector<std::string>> list_common_prefixes(S3Client& client, std::string_view folder, int page_entries) {
  const std::string begun = folder.empty() ? "" : absl::StrFormat("%s/", folder);
  std::vector<std::string> names;
  KEEPSTEP_RETURN_IF_ERROR(each_object_page(client, begun, true, page_entries, [&](const Xml::Element& page) -> Status {
    for (auto each = page.child("CommonPrefixes"); each.valid(); each = each.next("CommonPrefixes")) {
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string key, own_key(client, page, each.text("Prefix"), begun));
      std::string name = key.substr(begun.size());
      if (name.ends_with('/')) {
        name.pop_back();
      }
      if (!check_key(name).ok()) {
        continue;
      }
      if (names.size() >= kMaxListed) {
        return too_many_listed(folder, client.location().describe());
      }
      names.push_back(std::move(name));
    }
    return absl::OkStatus();
  }));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

StatusOr<Uploads> list_uploads(S3Client& client, std::string_view prefix) {
  Uploads uploads;
  S3Call call{.what = absl::StrFormat("list the uploads of '%s'", prefix)};
  call.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", client.location().prefix + std::string(prefix)}};
  KEEPSTEP_RETURN_IF_ERROR(each_page(
      client, std::move(call),
      [&](const S3Reply& reply) -> Status {
        const time_t date = curl_getdate(reply.answer.header("date").c_str(), nullptr);
        uploads.server_now_s = date > 0 ? static_cast<double>(date) : 0;
        const Xml::Element page = reply.xml->root();
        for (auto each = page.child("Upload"); each.valid(); each = each.next("Upload")) {
          KEEPSTEP_ASSIGN_OR_RETURN(std::string key, own_key(client, page, each.text("Key"), prefix));
          if (uploads.list.size() >= kMaxListed) {
            return too_many_listed(prefix, client.location().describe());
          }
          uploads.list.push_back({std::move(key), each.text("UploadId"), parse_iso_time(each.text("Initiated")),
                                  each.text("ChecksumAlgorithm")});
        }
        return absl::OkStatus();
      },
      [](const Xml::Element& page, auto* query) {
        const StatusOr<std::string> key = decoded(page, page.text("NextKeyMarker"));
        query->emplace_back("key-marker", key.ok() ? *key : "");
        query->emplace_back("upload-id-marker", page.text("NextUploadIdMarker"));
      }));
  return uploads;
}

StatusOr<std::vector<UploadedPart>> list_parts(S3Client& client, std::string_view key, const std::string& upload,
                                               int page_entries) {
  std::vector<UploadedPart> parts;
  S3Call call{.what = absl::StrFormat("list the parts of '%s'", key)};
  call.key = std::string(key);
  call.query = {{"max-parts", absl::StrFormat("%d", page_entries)}, {"uploadId", upload}};
  KEEPSTEP_RETURN_IF_ERROR(each_page(
      client, std::move(call),
      [&](const S3Reply& reply) -> Status {
        const Xml::Element page = reply.xml->root();
        for (auto each = page.child("Part"); each.valid(); each = each.next("Part")) {
          if (parts.size() >= 10'000) {
            return strange(client, "has more parts than there can be");
          }
          parts.push_back({static_cast<int>(std::min<uint64_t>(number_of(each.text("PartNumber")), 10'001)),
                           number_of(each.text("Size")), unquoted(each.text("ETag")), each.text("ChecksumCRC32C")});
        }
        return absl::OkStatus();
      },
      [](const Xml::Element& page, auto* query) {
        query->emplace_back("part-number-marker", page.text("NextPartNumberMarker"));
      }));
  return parts;
}

Status abort_upload(S3Client& client, std::string_view key, const std::string& upload) {
  S3Call call{.what = absl::StrFormat("give up the upload of '%s'", key), .method = "DELETE"};
  call.key = std::string(key);
  call.query = {{"uploadId", upload}};
  call.also = {404};  // somebody else was faster
  return client.call(call).status();
}

}  // namespace keepstep::checkpoint
