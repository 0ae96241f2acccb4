#include "tests/differential/operation.h"

#include <cctype>
#include <cstdio>
#include <sstream>

namespace okcvm::differential {
namespace {

// In the order of Kind: name, weight, path, path2, slot, slot2.
constexpr std::array<KindFacts, kKinds> kFacts{{
    {"open", 14, true, false, true, false},         {"openat", 4, true, false, true, true},
    {"close", 6, false, false, true, false},        {"read", 6, false, false, true, false},
    {"write", 12, false, false, true, false},       {"lseek", 4, false, false, true, false},
    {"ftruncate", 4, false, false, true, false},    {"fallocate", 4, false, false, true, false},
    {"fsync", 1, false, false, true, false},        {"fstat", 3, false, false, true, false},
    {"fchmod", 2, false, false, true, false},       {"fchown", 2, false, false, true, false},
    {"futimens", 2, false, false, true, false},     {"copy_file_range", 3, false, false, true, true},
    {"mmap-write", 4, false, false, true, false},   {"mmap-read", 3, false, false, true, false},
    {"flock", 3, false, false, true, false},        {"ofd-lock", 3, false, false, true, false},
    {"ofd-getlk", 2, false, false, true, false},    {"getdents", 2, false, false, true, false},
    {"mmap", 3, false, false, true, false},         {"store-mapped", 4, false, false, false, false},
    {"load-mapped", 2, false, false, false, false}, {"munmap", 1, false, false, false, false},
    {"truncate", 4, true, false, false, false},     {"mkdir", 9, true, false, false, false},
    {"mknod", 3, true, false, false, false},        {"unlink", 6, true, false, false, false},
    {"rmdir", 4, true, false, false, false},        {"unlinkat", 2, true, false, false, true},
    {"rename", 9, true, true, false, false},        {"link", 6, true, true, false, false},
    {"link-open", 3, true, false, true, false},     {"symlink", 5, true, false, false, false},
    {"readlink", 3, true, false, false, false},     {"stat", 5, true, false, false, false},
    {"access", 4, true, false, false, false},       {"chmod", 6, true, false, false, false},
    {"chown", 5, true, false, false, false},        {"utimensat", 4, true, false, false, false},
    {"readdir", 3, true, false, false, false},      {"setxattr", 4, true, false, false, false},
    {"getxattr", 3, true, false, false, false},     {"listxattr", 2, true, false, false, false},
    {"removexattr", 2, true, false, false, false},
}};

}  // namespace

const KindFacts& facts_of(Kind kind) {
  return kFacts[static_cast<std::size_t>(kind)];
}

std::string printable(std::string_view text) {
  std::string shown = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    std::size_t run = 1;
    while (i + run < text.size() && text[i + run] == text[i]) ++run;
    if (run > 8) {
      shown += std::string(1, text[i]) + "{" + std::to_string(run) + "}";
      i += run - 1;
    } else if (std::isprint(byte) && byte != '"') {
      shown += text[i];
    } else {
      std::array<char, 8> code;
      std::snprintf(code.data(), code.size(), "\\x%02x", byte);
      shown += code.data();
    }
  }
  return shown + "\"";
}

std::string describe(const Operation& operation) {
  const auto& facts = facts_of(operation.kind);
  std::ostringstream line;
  line << facts.name << " who=" << operation.who;
  if (facts.uses_slot) line << " slot=" << operation.slot;
  if (facts.uses_slot2) line << " slot2=" << operation.slot2;
  if (facts.uses_path) line << " " << printable(operation.path);
  if (facts.uses_path2 || operation.kind == Kind::kSymlink) line << " " << printable(operation.path2);
  if (!operation.name.empty()) line << " name=" << printable(operation.name);
  if (operation.kind >= Kind::kMap && operation.kind <= Kind::kUnmap)
    line << " mapping=" << operation.mapping;
  if (operation.flags) line << " flags=0" << std::oct << operation.flags << std::dec;
  if (operation.mode) line << " mode=0" << std::oct << operation.mode << std::dec;
  if (operation.kind == Kind::kOpen || operation.kind == Kind::kMkdir || operation.kind == Kind::kMknod)
    line << " umask=0" << std::oct << operation.umask << std::dec;
  if (operation.kind == Kind::kChown || operation.kind == Kind::kFchown)
    line << " uid=" << static_cast<int>(operation.uid) << " gid=" << static_cast<int>(operation.gid);
  if (operation.offset) line << " offset=" << operation.offset;
  if (operation.offset2) line << " offset2=" << operation.offset2;
  if (operation.length) line << " length=" << operation.length;
  if (operation.kind == Kind::kUtimens || operation.kind == Kind::kFutimens)
    for (const auto& time : operation.times) line << " " << time.tv_sec << "." << time.tv_nsec;
  return line.str();
}

}  // namespace okcvm::differential
