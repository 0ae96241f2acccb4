#include "fusefs/skill_numbers.h"

#include <algorithm>
#include <fstream>
#include <utility>

namespace okcvm::fusefs {
namespace {

VolumeId number_for(std::string_view skill) {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : skill) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<VolumeId>(kFirstSkillVolume + hash % kMaxSkillVolumes);
}

VolumeId next_after(VolumeId number) {
  return static_cast<VolumeId>(kFirstSkillVolume + (number - kFirstSkillVolume + 1) % kMaxSkillVolumes);
}

}  // namespace

SkillNumbers::SkillNumbers(std::filesystem::path file) : file_(std::move(file)) {
  std::ifstream in(file_);
  std::string directory;
  for (VolumeId number = 0; in >> number && in.get() == ' ' && std::getline(in, directory) && !in.eof();)
    given_[number] = directory;  // a later line counts for more; one that was not written whole does not
}

VolumeId SkillNumbers::number_of(const Name& name, std::string_view identity,
                                 const std::set<VolumeId>& in_use) {
  std::string directory = name.text() + " " + std::string(identity);
  std::replace(directory.begin(), directory.end(), '\n', '/');  // which no name has
  for (const auto& [number, known] : given_)
    if (known == directory) return number;
  const bool is_any_new = given_.size() < kMaxSkillVolumes;
  VolumeId number = number_for(name.text());
  for (std::size_t tries = 0; tries < kMaxSkillVolumes; ++tries, number = next_after(number))
    if (!in_use.contains(number) && !(is_any_new && given_.contains(number))) break;
  given_[number] = directory;
  std::ofstream(file_, std::ios::app) << std::to_string(number) + " " + directory + "\n";
  return number;
}

}  // namespace okcvm::fusefs
