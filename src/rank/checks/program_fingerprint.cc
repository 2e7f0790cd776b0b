#include "rank/checks/program_fingerprint.h"

#include <elf.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"

namespace keepstep::rank {
namespace {

// The note that linkers write, in one PT_NOTE segment: sizes of name and description, type, then name and description,
// each padded to 4 bytes.
std::string build_id_in(std::string_view notes) {
  ElfW(Nhdr) header{};
  while (notes.size() >= sizeof header) {
    std::memcpy(&header, notes.data(), sizeof header);
    notes.remove_prefix(sizeof header);
    const size_t name = (size_t{header.n_namesz} + 3) & ~size_t{3};
    const size_t description = (size_t{header.n_descsz} + 3) & ~size_t{3};
    if (notes.size() < name + description) {
      break;
    }
    if (header.n_type == NT_GNU_BUILD_ID && notes.starts_with(std::string_view("GNU\0", 4))) {
      const std::string_view id = notes.substr(name, header.n_descsz);
      return absl::BytesToHexString({id.data(), id.size()});
    }
    notes.remove_prefix(name + description);
  }
  return "";
}

// Called for the program itself first, and for no other object.
int look(dl_phdr_info* object, size_t /*size*/, void* out) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_NOTE) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): that is how the loader says where it put the program
      const auto* notes = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
      if (std::string id = build_id_in({notes, segment.p_memsz}); !id.empty()) {
        *static_cast<std::string*>(out) = std::move(id);
        break;
      }
    }
  }
  return 1;
}

std::string cpu_features() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("flags") || line.starts_with("Features")) {
      return line;
    }
  }
  return "";
}

}  // namespace

messages::Texts program_fingerprint() {
  std::string id;
  dl_iterate_phdr(look, &id);
  const std::string features = cpu_features();
  return {{"program", id.empty() ? "unknown" : id},
          {"cpu", absl::StrFormat("%016x", checksum(features.data(), features.size()))}};
}

}  // namespace keepstep::rank
