#include "policy/rel_path.h"

#include <algorithm>

namespace okcvm {
namespace {

constexpr std::size_t kMaxName = 255;   // NAME_MAX, limits.h
constexpr std::size_t kMaxPath = 4095;  // PATH_MAX less the terminating NUL

Error overlong(std::string_view what) {
  Error error = Error::of(Code::kInvalidRequest, std::string(what) + " is too long");
  error.errno_value = ENAMETOOLONG;
  return error;
}

}  // namespace

Result<Name> Name::parse(std::string_view text) {
  if (text.empty()) return fail(Code::kInvalidRequest, "a name may not be empty");
  if (text == ".." || text == ".") return fail(Code::kPathTraversalBlocked, "a name may not be . or ..");
  if (text.find('\0') != text.npos) return fail(Code::kInvalidRequest, "a name may not contain a NUL byte");
  if (text.find('/') != text.npos) return fail(Code::kPathTraversalBlocked, "a name may not contain a slash");
  if (text.size() > kMaxName) return fail(overlong("a name of more than 255 bytes"));
  return Name(std::string(text));
}

Result<RelPath> RelPath::parse(std::string_view text) {
  if (text.empty() || text == "." || text == "./") return RelPath();
  if (text.front() == '/') return fail(Code::kPathTraversalBlocked, "use a path relative to the session");
  if (text.back() == '/') text.remove_suffix(1);
  if (text.size() > kMaxPath) return fail(overlong("a path of more than 4095 bytes"));

  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find('/', start), text.size());
    if (auto name = Name::parse(text.substr(start, end - start)); !name) return fail(name.error());
    start = end + 1;
  }
  return RelPath(std::string(text));
}

std::vector<std::string_view> RelPath::components() const {
  std::vector<std::string_view> parts;
  const std::string_view text = text_;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('/', start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::size_t RelPath::depth() const {
  return text_.empty() ? 0 : 1 + static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '/'));
}

std::string_view RelPath::top() const {
  return std::string_view(text_).substr(0, text_.find('/'));
}

std::string_view RelPath::leaf() const {
  const auto slash = text_.rfind('/');
  return slash == text_.npos ? std::string_view(text_) : std::string_view(text_).substr(slash + 1);
}

RelPath RelPath::parent() const {
  const auto slash = text_.rfind('/');
  return slash == text_.npos ? RelPath() : RelPath(text_.substr(0, slash));
}

RelPath RelPath::operator/(const Name& name) const {
  return RelPath(text_.empty() ? name.text() : text_ + "/" + name.text());
}

bool RelPath::is_within(const RelPath& ancestor) const {
  if (ancestor.is_root() || text_ == ancestor.text_) return true;
  return text_.size() > ancestor.text_.size() && text_.starts_with(ancestor.text_) &&
         text_[ancestor.text_.size()] == '/';
}

}  // namespace okcvm
