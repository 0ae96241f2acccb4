#pragma once

#include <string>
#include <string_view>

namespace okcvm {

/// The kind of an uploaded file by its extension, letter case ignored: the table of [S2 4.4], else "unknown".
std::string_view kind_of_file(std::string_view name);

/// The Content-Type to serve a file with, by its extension; "application/octet-stream" when it is not known.
/// Never a type that a browser would run.
std::string_view content_type_of(std::string_view name);

/// The name an upload gets in uploads/: the last component of what was asked for (either separator), without
/// control characters, at most 200 bytes and cut between UTF-8 characters (a short extension stays); "upload"
/// when nothing but spaces and dots is left. Otherwise leading dots, and spaces at either end, are kept.
std::string safe_upload_name(std::string_view requested);

}  // namespace okcvm
