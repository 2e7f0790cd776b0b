// S3's XML answers, read by tinyxml2: no custom entities, no external files, bounded depth. Names come without their
// namespace; missing elements are empty.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tinyxml2 {
class XMLDocument;
class XMLElement;
}  // namespace tinyxml2

namespace keepstep::checkpoint {

class Xml {
 public:
  // DATA_LOSS if it is not well-formed: truncated, or not XML at all.
  static StatusOr<Xml> parse(std::string_view text);

  Xml(Xml&&) noexcept;
  Xml& operator=(Xml&&) noexcept;
  ~Xml();

  class Element {
   public:
    explicit Element(const tinyxml2::XMLElement* element) : element_(element) {}
    bool valid() const { return element_ != nullptr; }
    std::string_view name() const;
    // The text of the first child with that name.
    std::string text(std::string_view child) const;
    Element child(std::string_view name) const;
    Element next(std::string_view name) const;  // the next sibling with that name

   private:
    const tinyxml2::XMLElement* element_;
  };
  Element root() const;

 private:
  Xml();
  std::unique_ptr<tinyxml2::XMLDocument> document_;
};

std::string xml_escaped(std::string_view text);

}  // namespace keepstep::checkpoint
