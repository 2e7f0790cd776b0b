#include "checkpoint/s3/trusted_certificates.h"

#include <fstream>

#include "checkpoint/s3/s3_store.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

TEST(TrustedCertificates, the_first_of_the_usual_files_that_is_there_is_taken) {
  TestFolder folder;
  const std::string absent = folder.path + "/absent.pem";
  const std::string first = folder.path + "/first.pem";
  const std::string second = folder.path + "/second.pem";
  std::ofstream(first) << "certificates";
  std::ofstream(second) << "certificates";
  const Environment nothing = [](const char*) -> const char* { return nullptr; };
  const char* files[] = {absent.c_str(), first.c_str(), second.c_str()};
  EXPECT_EQ(trusted_certificates(nothing, files), first);
  EXPECT_EQ(trusted_certificates(nothing, std::span(files, 1)), "");
}

TEST(TrustedCertificates, a_file_that_the_environment_names_wins_even_if_it_is_not_there) {
  TestFolder folder;
  const std::string usual = folder.path + "/usual.pem";
  std::ofstream(usual) << "certificates";
  const char* files[] = {usual.c_str()};
  const Environment names_one = [](const char* name) -> const char* {
    return std::string_view(name) == "SSL_CERT_FILE" ? "/nowhere/own.pem" : nullptr;
  };
  EXPECT_EQ(trusted_certificates(names_one, files), "/nowhere/own.pem");
}

}  // namespace
}  // namespace keepstep::checkpoint
