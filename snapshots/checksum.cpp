#include "snapshots/checksum.h"

#include <openssl/evp.h>
#include <zlib.h>

#include <new>

namespace okcvm::snapshots {

struct Checksum::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  if (!state_->context || EVP_DigestInit_ex(state_->context, EVP_sha1(), nullptr) != 1)
    throw std::bad_alloc();
}

Checksum::~Checksum() = default;

void Checksum::add(std::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
}

Oid Checksum::finish() {
  Oid oid;
  EVP_DigestFinal_ex(state_->context, oid.bytes.data(), nullptr);
  return oid;
}

std::uint32_t crc_number(std::string_view text) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

std::string crc_of(std::string_view text) {
  return std::to_string(crc_number(text));
}

}  // namespace okcvm::snapshots
