#include "snapshots/ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "policy/file_descriptor.h"
#include "snapshots/checksum.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

constexpr const char* kName = "ledger";
constexpr std::size_t kLongestLine = Oid::kHexSize + std::string_view(" 4294967295\n").size();

std::string line_of(const std::string& before, const std::string& id) {
  return id + " " + crc_of(before + id) + "\n";
}

/// Empty if it is cut off.
std::string last_line(int file) {
  std::string end(kLongestLine, '\0');
  const off_t size = ::lseek(file, 0, SEEK_END);
  const ssize_t length =
      ::pread(file, end.data(), end.size(), std::max<off_t>(size - static_cast<off_t>(end.size()), 0));
  end.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  if (!end.ends_with('\n')) return {};
  end.pop_back();
  return end.substr(end.rfind('\n') + 1);
}

}  // namespace

Ledger::Ids Ledger::all() const {
  Ids found;
  const auto text = read_file(own_folder_, kName);
  if (!text) return found;
  std::string before;
  std::size_t start = 0;
  for (std::size_t end = 0; (end = text->find('\n', start)) != text->npos; start = end + 1) {
    const std::string line = text->substr(start, end + 1 - start);
    std::string hex = line.substr(0, Oid::kHexSize);
    const auto id = Oid::parse(hex);
    if (id && (line == hex + "\n" || line == line_of(before, hex)))
      found.ids.push_back(*id);
    else
      found.is_sound = false;
    before = std::move(hex);
  }
  found.is_sound &= start == text->size();
  return found;
}

void Ledger::add(const Oid& snapshot, const std::optional<Oid>& before) const {
  constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  const FileDescriptor file(::openat(own_folder_, kName, before ? kFlags : kFlags | O_CREAT | O_TRUNC, 0600));
  if (!file) return;
  if (before && last_line(file.get()).substr(0, Oid::kHexSize) != before->hex()) {
    ::unlinkat(own_folder_, kName, 0);
    return;
  }
  const std::string line = line_of(before ? before->hex() : "", snapshot.hex());
  [[maybe_unused]] const ssize_t put = ::write(file.get(), line.data(), line.size());
}

void Ledger::write(const std::vector<Oid>& newest_first) const {
  std::string text;
  std::string before;
  for (auto id = newest_first.rbegin(); id != newest_first.rend(); ++id) {
    text += line_of(before, id->hex());
    before = id->hex();
  }
  [[maybe_unused]] const auto written = replace_file(own_folder_, kName, text, Durability::kLater);
}

}  // namespace okcvm::snapshots
