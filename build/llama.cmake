# Read by llama.cpp's CMakeLists.txt (CMAKE_PROJECT_INCLUDE in .cargo/config.toml); shortens the build by a fifth, leaves
# out the sets of CPU kernels that the compiler cannot compile, and links LLVM's OpenMP.
if(NOT PROJECT_NAME STREQUAL "llama.cpp" OR CMAKE_VERSION VERSION_LESS 3.19)
    return()
endif()

# Compiles the files of `target` whose path matches `pattern` in `n_units` units, as llama.cpp does with its models:
# most of the time goes to headers that they share.
function(warmpath_unite target pattern n_units)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "${pattern}")
    set(idx 0)
    foreach(source IN LISTS sources)
        math(EXPR unit "${idx} % ${n_units}")
        get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${folder}")
        set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${target}-${unit}")
        math(EXPR idx "${idx} + 1")
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# Runs when every target is defined. One may be missing: cargo features select them.
function(warmpath_shorten)
    # The profile of cargo: demo and tests spend little time in chat formats and in the preparation of media.
    if("$ENV{PROFILE}" STREQUAL "debug")
        foreach(target IN ITEMS llama-common mtmd)
            if(TARGET ${target})
                target_compile_options(${target} PRIVATE -O1)
            endif()
        endforeach()
    endif()
    if(TARGET llama-common)
        # Command line, downloads and console of llama.cpp's own programs, which nothing else of the library calls.
        get_target_property(sources llama-common SOURCES)
        list(FILTER sources EXCLUDE REGEX "^(arg|console|debug|download|hf-cache|imatrix-loader|preset)\\.cpp$")
        get_target_property(libraries llama-common LINK_LIBRARIES)
        list(REMOVE_ITEM libraries cpp-httplib)
        set_target_properties(llama-common PROPERTIES SOURCES "${sources}" LINK_LIBRARIES "${libraries}")
        set_target_properties(cpp-httplib PROPERTIES EXCLUDE_FROM_ALL ON)
        warmpath_unite(llama-common "(/parsers/.*|^(chat.*|peg-parser))\\.cpp$" 4)
    endif()
    if(TARGET mtmd)
        warmpath_unite(mtmd "^models/.*\\.cpp$" 4)
    endif()
endfunction()

# Replaces GNU's OpenMP, which GCC links, by LLVM's, which has the same functions: its waiting threads let others use the
# processor (docs/decisions/0061-openmp.md).
function(warmpath_link_llvm_openmp)
    if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        return()
    endif()
    # Debian's file name has a version, others' has none.
    find_library(WARMPATH_OPENMP NAMES libomp.so.5 omp)
    if(NOT WARMPATH_OPENMP)
        message(FATAL_ERROR "LLVM's OpenMP is missing: run `make setup`, or install libomp (Debian: libomp-dev)")
    endif()
    # For libraries that CMake links.
    set(OpenMP_gomp_LIBRARY "${WARMPATH_OPENMP}" CACHE FILEPATH "OpenMP" FORCE)
    # For programs that cargo links with -lgomp: the build script of llama-cpp-sys-2 names a folder of its own, and makes
    # the linker look there first.
    if(NOT CMAKE_INSTALL_PREFIX_INITIALIZED_TO_DEFAULT)
        file(MAKE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
        file(CREATE_LINK "${WARMPATH_OPENMP}" "${CMAKE_INSTALL_PREFIX}/libgomp.so" SYMBOLIC)
    endif()
endfunction()

# Runs when every target is defined. Two of ggml's sets of CPU kernels are for Arm processors with SME, and ggml does not
# ask whether the compiler knows it; GCC does from version 14 on. Neither a target nor its installation can be removed,
# so these get no kernels, and a name that neither llama.cpp nor scripts/image-files.sh takes for a backend's.
function(warmpath_leave_out_unknown_processors)
    if(NOT GGML_CPU_ALL_VARIANTS OR NOT TARGET ggml)
        return()
    endif()
    include(CheckCXXCompilerFlag)
    set(empty "${CMAKE_BINARY_DIR}/warmpath-empty.cpp")
    file(WRITE "${empty}" "")
    get_target_property(folder ggml SOURCE_DIR)
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    list(FILTER targets INCLUDE REGEX "^ggml-cpu-")
    foreach(target IN LISTS targets)
        get_target_property(flags ${target} COMPILE_OPTIONS)
        list(FILTER flags INCLUDE REGEX "^-march=")
        if(NOT flags)
            continue()
        endif()
        string(MAKE_C_IDENTIFIER "WARMPATH_KNOWS_${flags}" known)
        check_cxx_compiler_flag("${flags}" ${known})
        if(NOT ${known})
            message(STATUS "Leaving out ${target}: the compiler does not know ${flags}")
            set_target_properties(${target} PROPERTIES SOURCES "${empty}" COMPILE_OPTIONS "" PREFIX "left-out-")
        endif()
    endforeach()
endfunction()

warmpath_link_llvm_openmp()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL warmpath_shorten)
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL warmpath_leave_out_unknown_processors)
