#pragma once

#include <boost/beast/http/verb.hpp>
#include <string>
#include <string_view>

#include "tools/daemon/http/message.h"

namespace okcvm::daemon {

// HTTP/1.1 as it stands on the wire (RFC 9112), where Beast leaves it to us.

/// In ASCII, as the names of header fields are compared.
std::string lower_case(std::string_view text);
Method method_of(boost::beast::http::verb verb);
/// The path and query of a request's target, without "http://host"; empty if it is none.
std::string_view path_and_query_of(std::string_view target);

enum class Framing { kNone, kLength, kChunked };
/// The status line and header of an answer; `size` is the body's, in bytes, where its length is told.
std::string head_of(const Response& response, const std::string& request_id, Framing framing,
                    std::uint64_t size, bool keep_alive);
/// Of a body that is sent in chunks. Empty text would be the end of it.
std::string chunk_of(std::string_view text);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace okcvm::daemon
