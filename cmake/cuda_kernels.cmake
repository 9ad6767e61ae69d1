# Kernels for GPUs: compiled by nvcc into one fatbin, which becomes bytes in the library; without nvcc there are 0 bytes and the
# reason. Included by CMakeLists.txt, and run by the build as a script.
#
# A fatbin is kept in `build/kernels` of the source folder under the hash of all that it is made from, so that the many builds
# of one checkout compile it once.

# The kernels give the bits of the CPU: nothing is contracted, divisions are rounded rightly, denormals are kept.
set(kernel_flags -fatbin -O3 -std=c++17 --fmad=false -prec-div=true -prec-sqrt=true -ftz=false --threads 0 -Xfatbin=-compress-all
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90])

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(PCCL_CUDA_KERNELS AUTO CACHE STRING "Compile kernels for GPUs with nvcc: AUTO (if it is found), ON, or OFF")
  set(nvcc_folders "")
  if(NOT PCCL_CUDA_KERNELS STREQUAL "OFF")
    # NVIDIA's packages on the Python index, of the Python that builds or of the checkout's environment
    foreach(python ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/.venv/bin/python python3)
      execute_process(COMMAND ${python} -c "import nvidia; print(*nvidia.__path__, sep=';')"
        OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
      list(APPEND nvidia_folders ${folders})
    endforeach()
    foreach(folder ${nvidia_folders})
      file(GLOB found ${folder}/cu*/bin ${folder}/cuda_nvcc/bin)
      list(APPEND nvcc_folders ${found})
    endforeach()
    find_program(PCCL_NVCC nvcc PATHS /usr/local/cuda/bin ${nvcc_folders} DOC "Compiles kernels for GPUs")
    mark_as_advanced(PCCL_NVCC)
    if(PCCL_CUDA_KERNELS STREQUAL "ON" AND NOT PCCL_NVCC)
      message(FATAL_ERROR "PCCL_CUDA_KERNELS=ON, but nvcc was not found: install CUDA, or pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime")
    endif()
  endif()
  file(GLOB kernel_sources CONFIGURE_DEPENDS cuda/kernels/* csrc/compute/*.h)
  set(cuda_image ${PROJECT_BINARY_DIR}/cuda_image.c)
  add_custom_command(
    OUTPUT ${cuda_image}
    COMMAND ${CMAKE_COMMAND} -D source=${PROJECT_SOURCE_DIR} -D out=${cuda_image} -D nvcc=${PCCL_NVCC}
      -D wanted=${PCCL_CUDA_KERNELS} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${kernel_sources} ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Kernels for GPUs"
    VERBATIM)
  return()
endif()

# ---- the script: source, out, nvcc, wanted ----
function(write_image bytes length why_not)
  file(WRITE ${out} "// Made by cmake/cuda_kernels.cmake.\n#include \"cuda/cuda_kernels.h\"\n\n")
  if(bytes)
    file(APPEND ${out} "__asm__(\".pushsection .rodata\\n.balign 64\\npccl_cuda_fatbin:\\n.incbin \\\"${bytes}\\\"\\n.byte 0\\n.popsection\\n\");\n"
      "extern const unsigned char bytes[] __asm__(\"pccl_cuda_fatbin\");\n\n"
      "const struct cuda_image cuda_image = {bytes, ${length}, 0};\n")
  else()
    file(APPEND ${out} "const struct cuda_image cuda_image = {0, 0, \"${why_not}\"};\n")
  endif()
endfunction()

if(wanted STREQUAL "OFF")
  write_image("" 0 "the library was built with PCCL_CUDA_KERNELS=OFF")
  return()
endif()
if(NOT nvcc)
  write_image("" 0 "nvcc was not found when the library was built")
  return()
endif()

execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE made_from ERROR_QUIET)
string(APPEND made_from "${kernel_flags}")
file(GLOB sources ${source}/cuda/kernels/* ${source}/csrc/compute/*.h)
list(SORT sources)
foreach(file ${sources})
  file(SHA256 ${file} hash)
  string(APPEND made_from "${hash}")
endforeach()
string(SHA256 hash "${made_from}")
# in the build folder where the sources cannot be written to
get_filename_component(own ${out} DIRECTORY)
foreach(folder ${source}/build/kernels ${own}/kernels)
  set(kept ${folder})
  execute_process(COMMAND ${CMAKE_COMMAND} -E make_directory ${kept} RESULT_VARIABLE failed ERROR_QUIET)
  if(failed EQUAL 0)
    file(LOCK ${kept} DIRECTORY TIMEOUT 600 RESULT_VARIABLE failed)
  endif()
  if(failed EQUAL 0)
    break()
  endif()
endforeach()
set(fatbin ${kept}/${hash}.fatbin)
if(NOT EXISTS ${fatbin})
  execute_process(COMMAND ${nvcc} ${kernel_flags} -I${source} -I${source}/csrc -o ${fatbin}.new ${source}/cuda/kernels/kernels.cu
    RESULT_VARIABLE failed ERROR_VARIABLE words OUTPUT_VARIABLE words)
  if(failed)
    if(wanted STREQUAL "ON")
      message(FATAL_ERROR "nvcc failed:\n${words}")
    endif()
    message("nvcc failed, so the library has no kernels for GPUs:\n${words}")
    write_image("" 0 "nvcc failed when the library was built")
    return()
  endif()
  file(GLOB old ${kept}/*.fatbin)
  if(old)
    file(REMOVE ${old})
  endif()
  file(RENAME ${fatbin}.new ${fatbin})
endif()
file(COPY_FILE ${fatbin} ${out}.fatbin)
file(SIZE ${fatbin} length)
write_image(${out}.fatbin ${length} "")
