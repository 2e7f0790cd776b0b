#include "checkpoint/s3/xml.h"

#include <tinyxml2.h>

#include <utility>

namespace keepstep::checkpoint {
namespace {

std::string_view local_name(const tinyxml2::XMLElement* element) {
  const std::string_view name = element->Name();
  const size_t colon = name.rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

const tinyxml2::XMLElement* first_named(const tinyxml2::XMLElement* element, std::string_view name) {
  while (element != nullptr && local_name(element) != name) {
    element = element->NextSiblingElement();
  }
  return element;
}

}  // namespace

Xml::Xml() : document_(std::make_unique<tinyxml2::XMLDocument>()) {}
Xml::Xml(Xml&&) noexcept = default;
Xml& Xml::operator=(Xml&&) noexcept = default;
Xml::~Xml() = default;

StatusOr<Xml> Xml::parse(std::string_view text) {
  Xml xml;
  if (xml.document_->Parse(text.data(), text.size()) != tinyxml2::XML_SUCCESS ||
      xml.document_->RootElement() == nullptr) {
    return absl::DataLossError(absl::StrFormat("an answer of %d bytes is no whole XML", text.size()));
  }
  return xml;
}

Xml::Element Xml::root() const { return Element(document_->RootElement()); }

std::string_view Xml::Element::name() const { return element_ == nullptr ? "" : local_name(element_); }

std::string Xml::Element::text(std::string_view child_name) const {
  const Element found = child(child_name);
  const char* text = found.valid() ? found.element_->GetText() : nullptr;
  return text == nullptr ? "" : text;
}

Xml::Element Xml::Element::child(std::string_view name) const {
  return Element(element_ == nullptr ? nullptr : first_named(element_->FirstChildElement(), name));
}

Xml::Element Xml::Element::next(std::string_view name) const {
  return Element(element_ == nullptr ? nullptr : first_named(element_->NextSiblingElement(), name));
}

std::string xml_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace keepstep::checkpoint
