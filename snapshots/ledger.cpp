#include "snapshots/ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "policy/file_descriptor.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

constexpr const char* kName = "ledger";

}  // namespace

std::vector<Oid> Ledger::all() const {
  std::vector<Oid> ids;
  const auto text = read_file(own_folder_, kName);
  if (!text) return ids;
  for (std::size_t start = 0, end = 0; (end = text->find('\n', start)) != text->npos; start = end + 1)
    if (const auto id = Oid::parse(std::string_view(*text).substr(start, end - start))) ids.push_back(*id);
  return ids;
}

void Ledger::add(const Oid& snapshot, const std::optional<Oid>& before) const {
  constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  const FileDescriptor file(::openat(own_folder_, kName, before ? kFlags : kFlags | O_CREAT | O_TRUNC, 0600));
  if (!file) return;
  std::string last(Oid::kHexSize + 1, '\0');
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  const auto length = static_cast<off_t>(last.size());
  if (before && (size < length || ::pread(file.get(), last.data(), last.size(), size - length) != length ||
                 last != before->hex() + "\n")) {
    ::unlinkat(own_folder_, kName, 0);
    return;
  }
  const std::string line = snapshot.hex() + "\n";
  [[maybe_unused]] const ssize_t put = ::write(file.get(), line.data(), line.size());
}

void Ledger::write(const std::vector<Oid>& newest_first) const {
  std::string text;
  for (auto id = newest_first.rbegin(); id != newest_first.rend(); ++id) text += id->hex() + "\n";
  [[maybe_unused]] const auto written = replace_file(own_folder_, kName, text, Durability::kLater);
}

}  // namespace okcvm::snapshots
