// The Python module keepstep._checkpoint: stores and checkpoints. A separate module, loaded on first use, so that not
// every worker contains the S3 code. Tensors are passed as addresses; the caller must keep them alive.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "base/socket/local_socket.h"
#include "bindings/convert.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dcp/metadata.h"
#include "checkpoint/file_recipe.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/object_store.h"
#include "checkpoint/owner.h"
#include "checkpoint/range_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep {
namespace {

PyObject* error_type = nullptr;  // owned by the module, which lives as long as the process

}  // namespace

// Throws keepstep._checkpoint's error for any status; its `code` is the status's.
void throw_if_error(const Status& status) {
  if (status.ok()) {
    return;
  }
  const nb::object error = nb::handle(error_type)(nb::str(status.message().data(), status.message().size()));
  error.attr("code") = absl::StatusCodeToString(status.code());
  PyErr_SetObject(error_type, error.ptr());
  throw nb::python_error();
}

}  // namespace keepstep

namespace keepstep::checkpoint {
namespace {

std::span<const std::byte> bytes_of(const nb::bytes& bytes) {
  return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

using Store = std::shared_ptr<ObjectStore>;
using Sources = std::vector<std::pair<Store, std::string>>;
// file, data, element_bytes, part_lengths, offsets, lengths, address, strides
using Box = std::tuple<uint32_t, uint64_t, uint32_t, std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>,
                       uintptr_t, std::vector<int64_t>>;

std::vector<StoredFiles::Source> sources_of(const Sources& given) {
  std::vector<StoredFiles::Source> sources;
  for (const auto& [store, folder] : given) {
    sources.push_back({store, folder});
  }
  return sources;
}

std::vector<BoxRead> boxes_of(const std::vector<Box>& given) {
  std::vector<BoxRead> boxes;
  boxes.reserve(given.size());
  for (const auto& [file, data, element, part, offsets, lengths, into, strides] : given) {
    boxes.push_back({file, data, element, part, offsets, lengths, reinterpret_cast<std::byte*>(into), strides});
  }
  return boxes;
}

void bind_store(nb::module_& module) {
  nb::class_<ObjectInfo>(module, "ObjectInfo")
      .def_ro("key", &ObjectInfo::key)
      .def_ro("bytes", &ObjectInfo::bytes)
      .def_ro("etag", &ObjectInfo::etag)
      .def_ro("modified_ns", &ObjectInfo::modified_ns);
  nb::class_<ObjectStore>(module, "Store", "A folder of a disk or a prefix of an S3 bucket (object_store.h).")
      .def("describe", &ObjectStore::describe)
      .def("interrupt", &ObjectStore::interrupt)
      .def(
          "list",
          [](ObjectStore& self, const std::string& prefix) {
            return value_or_throw(without_gil([&] { return self.list(prefix); }));
          },
          "prefix"_a)
      .def(
          "head",
          [](ObjectStore& self, const std::string& key) {
            return value_or_throw(without_gil([&] { return self.head(key); }));
          },
          "key"_a)
      .def(
          "read",
          [](ObjectStore& self, const std::string& key, uint64_t offset, uint64_t bytes) {
            std::string read(bytes, '\0');
            throw_if_error(
                without_gil([&] { return self.read(key, offset, std::as_writable_bytes(std::span(read))); }));
            return nb::bytes(read.data(), read.size());
          },
          "key"_a, "offset"_a, "bytes"_a)
      .def(
          "read_all",
          [](ObjectStore& self, const std::string& key, uint64_t max_bytes) {
            const Object object = value_or_throw(without_gil([&] { return self.read_all(key, max_bytes); }));
            return nb::bytes(object.bytes.data(), object.bytes.size());
          },
          "key"_a, "max_bytes"_a)
      .def(
          "put",
          [](ObjectStore& self, const std::string& key, const nb::bytes& bytes) {
            const auto view = bytes_of(bytes);
            throw_if_error(without_gil([&] { return self.put(key, view, PutCondition::none()).status(); }));
          },
          "key"_a, "bytes"_a)
      .def(
          "remove",
          [](ObjectStore& self, const std::string& key) {
            throw_if_error(without_gil([&] { return self.remove(key); }));
          },
          "key"_a);
  module.attr("CHUNK_BYTES") = kChunkBytes;
  module.def(
      "open_store",
      [](const std::string& url, const std::optional<std::map<std::string, std::string>>& environment,
         const std::string& command) -> Store {
        StoreOptions options;
        options.command = command;
        if (environment) {
          options.environment = [values = *environment](const char* name) -> const char* {
            const auto found = values.find(name);
            return found == values.end() ? nullptr : found->second.c_str();
          };
        }
        return value_or_throw(open_store(url, options));
      },
      "url"_a, "environment"_a = nb::none(), "command"_a = "",
      "`environment`: where S3 finds its credentials, in the place of os.environ. `command`: the program keepstep, "
      "which "
      "starts a memory server; otherwise KEEPSTEP_COMMAND, or from PATH.");
}

void bind_files(nb::module_& module) {
  nb::class_<FileSums>(module, "FileSums")
      .def_ro("bytes", &FileSums::bytes)
      .def_prop_ro("whole", [](const FileSums& self) { return to_hex(self.whole); })
      .def("__getstate__",
           [](const FileSums& self) {
             std::vector<std::pair<uint64_t, uint64_t>> chunks;
             for (const Sum& sum : self.chunks) {
               chunks.emplace_back(sum.high, sum.low);
             }
             return std::tuple(self.bytes, self.whole.high, self.whole.low, std::move(chunks));
           })
      .def("__setstate__",
           [](FileSums& self,
              const std::tuple<uint64_t, uint64_t, uint64_t, std::vector<std::pair<uint64_t, uint64_t>>>& state) {
             new (&self) FileSums{std::get<0>(state), {std::get<1>(state), std::get<2>(state)}, {}};
             for (const auto& [high, low] : std::get<3>(state)) {
               self.chunks.push_back({high, low});
             }
           });
  module.def(
      "sums_of",
      [](const nb::bytes& bytes) {
        SumStream stream;
        stream.add(bytes_of(bytes));
        return stream.finish();
      },
      "bytes"_a);
  module.def(
      "sums_to_come",
      [](uint64_t bytes) {
        FileSums sums{.bytes = bytes};
        sums.chunks.resize((bytes + kChunkBytes - 1) / kChunkBytes);
        return sums;
      },
      "bytes"_a, "Of a file of this size that is not written yet: zeros, one for each chunk.");
  nb::class_<FileWriter>(module, "FileWriter", "A file of a checkpoint, piece by piece (file_recipe.h).")
      .def(
          "__init__",
          [](FileWriter* self, const Store& store, const std::string& key, uint64_t expected_bytes) {
            new (self) FileWriter(
                value_or_throw(without_gil([&] { return FileWriter::create(*store, key, expected_bytes); })));
          },
          nb::keep_alive<1, 2>(), "store"_a, "key"_a, "expected_bytes"_a)
      .def_prop_ro("size", &FileWriter::bytes)
      .def(
          "append",
          [](FileWriter& self, const nb::bytes& literal) {
            const auto view = bytes_of(literal);
            throw_if_error(without_gil([&] { return self.append(view); }));
          },
          "literal"_a)
      .def(
          "append_memory",
          [](FileWriter& self, uintptr_t address, uint64_t bytes) {
            throw_if_error(
                without_gil([&] { return self.append({reinterpret_cast<const std::byte*>(address), bytes}); }));
          },
          "address"_a, "bytes"_a)
      .def("commit", [](FileWriter& self) { return value_or_throw(without_gil([&] { return self.commit(); })); });
}

void bind_layout(nb::module_& module) {
  nb::class_<Extent>(module, "Extent")
      .def(
          "__init__",
          [](Extent* self, uint32_t file, uint64_t offset, uint64_t bytes) {
            new (self) Extent{.file = file, .offset = offset, .bytes = bytes};
          },
          "file"_a, "offset"_a, "bytes"_a)
      .def_ro("file", &Extent::file)
      .def_ro("offset", &Extent::offset)
      .def_ro("bytes", &Extent::bytes)
      .def_ro("transforms", &Extent::transforms);
  nb::class_<Part>(module, "Part")
      .def(
          "__init__",
          [](Part* self, const std::vector<int64_t>& offsets, const std::vector<int64_t>& lengths, const Extent& extent,
             std::optional<uint64_t> data) { new (self) Part{offsets, lengths, extent, data}; },
          "offsets"_a, "lengths"_a, "extent"_a, "data"_a.none())
      .def_ro("offsets", &Part::offsets)
      .def_ro("lengths", &Part::lengths)
      .def_ro("extent", &Part::extent)
      .def_ro("data", &Part::data);
  nb::class_<TensorEntry>(module, "TensorEntry")
      .def(
          "__init__",
          [](TensorEntry* self, const std::string& dtype, const std::vector<int64_t>& shape, const StatePath& path,
             const std::vector<Part>& parts) { new (self) TensorEntry{dtype, shape, path, parts}; },
          "dtype"_a, "shape"_a, "path"_a, "parts"_a)
      .def_ro("dtype", &TensorEntry::dtype)
      .def_ro("shape", &TensorEntry::shape)
      .def_ro("path", &TensorEntry::path)
      .def_ro("parts", &TensorEntry::parts);
  nb::class_<ObjectEntry>(module, "ObjectEntry")
      .def(
          "__init__",
          [](ObjectEntry* self, const StatePath& path, const Extent& extent) { new (self) ObjectEntry{path, extent}; },
          "path"_a, "extent"_a)
      .def_ro("path", &ObjectEntry::path)
      .def_ro("extent", &ObjectEntry::extent);
  nb::class_<Layout>(module, "Layout", "What is in a checkpoint and where (layout.h).")
      .def(nb::init<>())
      .def_rw("files", &Layout::files)
      .def_prop_ro("tensors",
                   [](const Layout& self) {
                     nb::typed<nb::dict, nb::str, TensorEntry> all;
                     for (const auto& [name, tensor] : self.tensors) {
                       all[name.c_str()] = nb::cast(tensor);
                     }
                     return all;
                   })
      .def_prop_ro("objects",
                   [](const Layout& self) {
                     nb::typed<nb::dict, nb::str, ObjectEntry> all;
                     for (const auto& [name, object] : self.objects) {
                       all[name.c_str()] = nb::cast(object);
                     }
                     return all;
                   })
      .def(
          "add_tensor",
          [](Layout& self, const std::string& name, TensorEntry tensor) { self.tensors[name] = std::move(tensor); },
          "name"_a, "tensor"_a)
      .def(
          "add_object",
          [](Layout& self, const std::string& name, ObjectEntry object) { self.objects[name] = std::move(object); },
          "name"_a, "object"_a)
      .def("parts", &Layout::parts)
      .def("tensor_bytes", &Layout::tensor_bytes);
  module.def("dtype_bytes", &dtype_bytes, "dtype"_a, "0 for names that are not torch's.");
  module.def(
      "read_metadata",
      [](const nb::bytes& pickle) {
        const auto view = bytes_of(pickle);
        return value_or_throw(without_gil([&] { return dcp::read_metadata(view); }));
      },
      "pickle"_a, "The layout that a DCP .metadata describes; nothing in it is run (dcp/metadata.h).");
}

void bind_manifest(nb::module_& module) {
  nb::class_<Manifest>(module, "Manifest", "What makes a folder of files a checkpoint (manifest.h).")
      .def(
          "__init__",
          [](Manifest* self, uint64_t step, uint32_t world, int64_t created_s, const std::string& job, uint64_t token,
             const Layout& layout, const std::vector<FileSums>& sums, const FileSums& metadata) {
            if (sums.size() != layout.files.size()) {
              throw nb::value_error("as many sums as files are needed");
            }
            new (self) Manifest{step, world, created_s, job, token, layout, sums, metadata};
          },
          "step"_a, "world"_a, "created_s"_a, "job"_a, "token"_a, "layout"_a, "sums"_a, "metadata"_a)
      .def_ro("step", &Manifest::step)
      .def_ro("world", &Manifest::world)
      .def_ro("created_s", &Manifest::created_s)
      .def_ro("job", &Manifest::job)
      .def_ro("token", &Manifest::token)
      .def_ro("layout", &Manifest::layout)
      .def_ro("sums", &Manifest::sums)
      .def_ro("metadata", &Manifest::metadata)
      .def_prop_ro("size", &Manifest::bytes)
      .def("encode", [](const Manifest& self) {
        const std::string text = encode_manifest(self);
        return nb::bytes(text.data(), text.size());
      });
  module.def(
      "parse_manifest", [](const nb::bytes& text) { return value_or_throw(parse_manifest(bytes_of(text))); }, "text"_a);
}

struct PyOwner {
  std::shared_ptr<Owner> owner;
};

void bind_owner(nb::module_& module) {
  nb::class_<OwnerRecord>(module, "OwnerRecord")
      .def_ro("token", &OwnerRecord::token)
      .def_ro("job", &OwnerRecord::job)
      .def_ro("host", &OwnerRecord::host)
      .def_ro("pid", &OwnerRecord::pid)
      .def_ro("renewed_s", &OwnerRecord::renewed_s)
      .def_ro("lease_s", &OwnerRecord::lease_s)
      .def_ro("released", &OwnerRecord::released)
      .def("in_words", [](const OwnerRecord& self) { return in_words(self); })
      .def("is_gone", [](const OwnerRecord& self, int64_t now_s) { return is_gone(self, now_s); }, "now_s"_a);
  module.def(
      "read_owner", [](const Store& store) { return value_or_throw(without_gil([&] { return read_owner(*store); })); },
      "store"_a);
  nb::class_<PyOwner>(module, "Owner", "Who writes into a namespace: one job at a time, fenced (owner.h).")
      .def(
          "__init__",
          [](PyOwner* self, const Store& store, const std::string& job, double lease_s) {
            OwnerOptions options{.job = job,
                                 .lease = std::chrono::seconds(std::max<int64_t>(1, static_cast<int64_t>(lease_s)))};
            auto claimed = value_or_throw(without_gil([&] { return Owner::claim(store, options); }));
            new (self) PyOwner{std::move(claimed)};
          },
          "store"_a, "job"_a, "lease_s"_a = 60.0)
      .def_prop_ro("token", [](const PyOwner& self) { return self.owner->token(); })
      .def("renew", [](const PyOwner& self) { throw_if_error(without_gil([&] { return self.owner->renew(); })); })
      .def("release", [](const PyOwner& self) { throw_if_error(without_gil([&] { return self.owner->release(); })); });
}

void bind_catalog(nb::module_& module) {
  nb::class_<CheckpointInfo>(module, "CheckpointInfo")
      .def_ro("step", &CheckpointInfo::step)
      .def_ro("complete", &CheckpointInfo::complete)
      .def_ro("foreign", &CheckpointInfo::foreign)
      .def_ro("pinned", &CheckpointInfo::pinned)
      .def_ro("bytes", &CheckpointInfo::bytes)
      .def_ro("files", &CheckpointInfo::files)
      .def_ro("modified_ns", &CheckpointInfo::modified_ns);
  nb::class_<Catalog>(module, "Catalog", "A namespace of checkpoints (catalog.h).")
      .def(nb::init<Store>(), "store"_a)
      .def("checkpoints", [](const Catalog& self) { return value_or_throw(without_gil([&] { return self.list(); })); })
      .def(
          "manifest",
          [](const Catalog& self, uint64_t step) {
            return value_or_throw(without_gil([&] { return self.manifest(step); }));
          },
          "step"_a)
      .def(
          "manifest_in",
          [](const Catalog& self, const std::string& folder) {
            return value_or_throw(without_gil([&] { return self.manifest_in(folder); }));
          },
          "folder"_a)
      .def(
          "newest",
          [](const Catalog& self) {
            std::vector<std::string> skipped;
            Manifest newest = value_or_throw(without_gil([&] { return self.newest(&skipped); }));
            return std::pair(std::move(newest), std::move(skipped));
          },
          "The manifest of the highest complete step, and why higher ones are not it.")
      .def(
          "commit",
          [](const Catalog& self, const PyOwner& owner, const Manifest& manifest, const nb::bytes& metadata,
             bool replace) {
            const auto view = bytes_of(metadata);
            throw_if_error(without_gil([&] { return self.commit(*owner.owner, manifest, view, replace); }));
          },
          "owner"_a, "manifest"_a, "metadata"_a, "replace"_a)
      .def(
          "remove",
          [](const Catalog& self, uint64_t step) { throw_if_error(without_gil([&] { return self.remove(step); })); },
          "step"_a)
      .def(
          "pin",
          [](const Catalog& self, uint64_t step, const std::string& why) {
            throw_if_error(without_gil([&] { return self.pin(step, why); }));
          },
          "step"_a, "why"_a)
      .def(
          "unpin",
          [](const Catalog& self, uint64_t step) { throw_if_error(without_gil([&] { return self.unpin(step); })); },
          "step"_a)
      .def(
          "prune",
          [](const Catalog& self, const PyOwner& owner, uint32_t keep, double max_age_s, double save_limit_s) {
            const auto in_ns = [](double seconds) {
              return std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9));
            };
            const brain::RetentionRules rules{
                .keep = keep, .max_age = in_ns(max_age_s), .save_limit = in_ns(save_limit_s)};
            std::vector<std::pair<uint64_t, std::string>> gone;
            for (const brain::Removal& removal :
                 value_or_throw(without_gil([&] { return self.prune(*owner.owner, rules); }))) {
              gone.emplace_back(removal.step, removal.because);
            }
            return gone;
          },
          "owner"_a, "keep"_a, "max_age_s"_a = 0.0, "save_limit_s"_a = 3600.0,
          "Removes by count and age; the steps that went, and why.");
  module.def("folder_of", &folder_of, "step"_a);
  module.def("step_of", &step_of, "folder"_a);
  module.def("data_file_name", &data_file_name, "rank"_a, "number"_a, "token"_a, "attempt"_a);
}

// Verifies all chunks of some files in several threads, while Python can ask for the progress.
class Verifier {
 public:
  Verifier(const StoredFiles& stored, unsigned threads) : stored_(stored) {
    for (uint32_t file = 0; file < stored_.files.size(); ++file) {
      for (uint64_t chunk = 0; chunk < chunk_count(stored_.files[file]); ++chunk) {
        tasks_.emplace_back(file, chunk);
      }
    }
    at_work_ = static_cast<int>(std::max(1U, threads));
    for (unsigned i = 0; i < std::max(1U, threads); ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }
  ~Verifier() {
    for (std::jthread& thread : threads_) {
      thread.request_stop();
    }
  }

  uint64_t done_bytes() const { return done_; }
  bool running() const { return at_work_ > 0; }
  std::vector<std::string> problems() {
    const std::lock_guard lock(mutex_);
    return problems_;
  }
  uint64_t bad() const { return bad_; }

 private:
  void work(const std::stop_token& stop) {
    std::vector<std::byte> buffer(kChunkBytes);
    for (size_t i = next_.fetch_add(1); i < tasks_.size() && !stop.stop_requested(); i = next_.fetch_add(1)) {
      const auto [file, chunk] = tasks_[i];
      const std::span into(buffer.data(), chunk_bytes(stored_.files[file], chunk));
      size_t source = 0;
      if (const Status read = read_chunk(stored_, file, chunk, into, source); !read.ok()) {
        ++bad_;
        const std::lock_guard lock(mutex_);
        if (problems_.size() < 100) {
          problems_.emplace_back(read.message());
        }
      }
      done_ += into.size();
    }
    --at_work_;
  }

  StoredFiles stored_;
  std::vector<std::pair<uint32_t, uint64_t>> tasks_;
  std::atomic<size_t> next_ = 0;
  std::atomic<uint64_t> done_ = 0;
  std::atomic<uint64_t> bad_ = 0;
  std::mutex mutex_;
  std::vector<std::string> problems_;
  std::atomic<int> at_work_ = 0;
  std::vector<std::jthread> threads_;  // last: they end before the members they use
};

void bind_reading(nb::module_& module) {
  nb::class_<StoredFiles>(module, "StoredFiles", "Files of a checkpoint in one or more destinations (range_reader.h).")
      .def(
          "__init__",
          [](StoredFiles* self, const Manifest& manifest, const Sources& sources, bool with_metadata) {
            new (self) StoredFiles(stored_files(manifest, sources_of(sources), with_metadata));
          },
          "manifest"_a, "sources"_a, "with_metadata"_a = false)
      .def(
          "read_boxes",
          [](const StoredFiles& self, const std::vector<Box>& boxes, unsigned threads) {
            const std::vector<BoxRead> reads = boxes_of(boxes);
            const ReadTally tally = value_or_throw(without_gil([&] { return read_boxes(self, reads, threads); }));
            return std::tuple(tally.chunks, tally.bytes, tally.elsewhere);
          },
          "boxes"_a, "threads"_a = 4,
          "(file, data, element_bytes, part_lengths, offsets, lengths, address, strides) each; chunks and bytes read, "
          "and chunks that another destination than the first had to give.")
      .def(
          "read_range",
          [](const StoredFiles& self, uint32_t file, uint64_t offset, uint64_t bytes) {
            if (file >= self.files.size() || offset > self.files[file].bytes ||
                bytes > self.files[file].bytes - offset) {
              throw nb::value_error("a range outside its file");
            }
            std::string read(bytes, '\0');
            const auto length = static_cast<int64_t>(bytes);
            const BoxRead box{file, offset, 1, {length}, {0}, {length}, reinterpret_cast<std::byte*>(read.data()), {1}};
            value_or_throw(without_gil([&] { return read_boxes(self, {&box, 1}, 1); }));
            return nb::bytes(read.data(), read.size());
          },
          "file"_a, "offset"_a, "bytes"_a);
  nb::class_<Verifier>(module, "Verifier", "Reads and checks everything, in threads of its own.")
      .def(nb::init<const StoredFiles&, unsigned>(), "stored"_a, "threads"_a = 4)
      .def_prop_ro("done_bytes", &Verifier::done_bytes)
      .def_prop_ro("running", &Verifier::running)
      .def_prop_ro("bad_chunks", &Verifier::bad)
      .def("problems", &Verifier::problems, "What is wrong, the first hundred.");
}

void bind_sockets(nb::module_& module) {
  module.def(
      "connect_local",
      [](const std::string& path) {
        PacketSocket socket = value_or_throw(without_gil([&] { return connect_local(path); }));
        return socket.release();
      },
      "path"_a, "A descriptor, which is the caller's, of a connection to who listens there.");
  module.def("is_trusted", [](int fd) { return trusted_peer(fd).ok(); }, "fd"_a);
}

}  // namespace
}  // namespace keepstep::checkpoint

NB_MODULE(_checkpoint, module) {
  using namespace keepstep;
  using namespace keepstep::checkpoint;
  module.doc() = "Checkpoints on disk and S3 (C++); see src/checkpoint and docs/design/checkpoints.md.";
  error_type = PyErr_NewExceptionWithDoc("keepstep._checkpoint.Error",
                                         "What a store or a checkpoint answered; `code` is its kind, \"NOT_FOUND\".",
                                         PyExc_RuntimeError, nullptr);
  module.attr("Error") = nb::handle(error_type);
  nanobind::set_leak_warnings(false);
  bind_store(module);
  bind_files(module);
  bind_layout(module);
  bind_manifest(module);
  bind_owner(module);
  bind_catalog(module);
  bind_reading(module);
  bind_sockets(module);
}
