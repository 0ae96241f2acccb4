#include "policy/file_kind.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "policy/utf8.h"

namespace okcvm {
namespace {

constexpr std::size_t kMaxUploadName = 200;  // leaves room for " (9999)" below NAME_MAX

struct ExtensionRow {
  std::string_view extension;
  std::string_view kind;  // [S2 4.4]; empty: not in the seed's table
  std::string_view content_type;
};

constexpr std::array kExtensions{
    ExtensionRow{".pdf", "pdf", "application/pdf"},
    ExtensionRow{".docx", "document",
                 "application/vnd.openxmlformats-officedocument.wordprocessingml.document"},
    ExtensionRow{".xlsx", "spreadsheet", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
    ExtensionRow{".csv", "csv", "text/csv"},
    ExtensionRow{".txt", "text", "text/plain"},
    ExtensionRow{".md", "markdown", "text/markdown"},
    ExtensionRow{".py", "python", "text/x-python"},
    ExtensionRow{".json", "json", "application/json"},
    ExtensionRow{".png", "image", "image/png"},
    ExtensionRow{".jpg", "image", "image/jpeg"},
    ExtensionRow{".jpeg", "image", "image/jpeg"},
    ExtensionRow{".gif", "", "image/gif"},
    ExtensionRow{".zip", "", "application/zip"},
    ExtensionRow{".gz", "", "application/gzip"},
    ExtensionRow{".log", "", "text/plain"},
};

const ExtensionRow* row_of(std::string_view name) {
  const auto dot = name.rfind('.');
  if (dot == name.npos || dot == 0) return nullptr;
  std::string extension(name.substr(dot));
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const auto& row : kExtensions)
    if (row.extension == extension) return &row;
  return nullptr;
}

}  // namespace

std::string_view kind_of_file(std::string_view name) {
  const auto* row = row_of(name);
  return row && !row->kind.empty() ? row->kind : "unknown";
}

std::string_view content_type_of(std::string_view name) {
  const auto* row = row_of(name);
  return row ? row->content_type : "application/octet-stream";
}

std::string safe_upload_name(std::string_view requested) {
  if (const auto separator = requested.find_last_of("/\\"); separator != requested.npos)
    requested.remove_prefix(separator + 1);
  std::string name;
  for (const char c : requested)
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) name.push_back(c);
  if (name.find_first_not_of(" .") == name.npos) return "upload";
  if (name.size() <= kMaxUploadName) return name;

  const auto dot = name.rfind('.');
  const auto extension = dot == name.npos || name.size() - dot > 16 ? std::string() : name.substr(dot);
  return std::string(truncated_utf8(name, kMaxUploadName - extension.size())) + extension;
}

}  // namespace okcvm
