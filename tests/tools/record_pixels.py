"""Records results of Pillow, libsndfile, and the feature extractors of transformers, for the tests in `media/tests`.

    pip install 'pillow<13' numpy soundfile transformers torch torchaudio simplejpeg
    python tests/tools/record_pixels.py tests/data/media

`resized.bin`: CRC-32 of 10,000 resized images, whose sizes and pixels are derived from the image number. Pillow 13
resizes some sizes by columns first, which rounds differently; earlier versions do this only for heights above 100
widths.
`images.bin`: encoded images of all color types, and their pixels after `exif_transpose` and `convert("RGB")`.
`samplings.bin`: JPEG images of all common samplings in small and odd sizes, and the CRC-32 of their pixels.
`parts.txt`: number of parts and CRC-32 of their pixels, for the encoders of `tests/data/encoders` and images of noise.
They are computed by the Pillow-based image processors of transformers, or by the published code of DeepSeek-OCR 2,
MiniMax M3, Muse Glimmer, Phi-4, and Step3-VL. Ling 3 and MiMo-V2.5 use the processor of Qwen2-VL; Youtu-VL uses the
sizes of llama.cpp. Images with an aspect ratio above 200 are only recorded for encoders of square images.
`audio.bin`: encoded audio and the average of its channels, as 16-bit integers.
`mels.bin`: log-mel spectrograms of a computed signal. The extractors run in float64.
"""
import io, struct, sys, zlib
import numpy as np
from PIL import Image, ImageOps

FILTERS = [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS]


def noise(seed, n):
    """Returns the upper bits of a multiplicative hash of positions, as bytes. `media/tests/common` contains the same
    function."""
    i = np.arange(n, dtype=np.uint64) + np.uint64(seed) * np.uint64(1000003)
    h = (i * np.uint64(2654435761)) & np.uint64(0xffffffff)
    h ^= h >> np.uint64(15)
    h = (h * np.uint64(2246822519)) & np.uint64(0xffffffff)
    return ((h >> np.uint64(13)) & np.uint64(255)).astype(np.uint8)


def sizes(case):
    """Width and height before and after. Every fifth image is small, every seventh a strip."""
    b = noise(case, 8).astype(int)
    limit = 12 if case % 5 == 0 else 160
    side = lambda lo, hi: 1 + (lo * 256 + hi) % limit
    w, h, tw, th = side(b[0], b[1]), side(b[2], b[3]), side(b[4], b[5]), side(b[6], b[7])
    if case % 7 == 0:
        w, th = w * 9, max(1, th // 40)
    return w, h, tw, th


def resized():
    out = bytearray()
    for case in range(10000):
        w, h, tw, th = sizes(case)
        a = noise(case + 20000, w * h * 3)
        if case % 3 == 0:
            a = (a > 127).astype(np.uint8) * 255  # overshoot is clipped
        im = Image.fromarray(a.reshape(h, w, 3))
        out += struct.pack('<I', zlib.crc32(im.resize((tw, th), FILTERS[case % 3 if case % 2 else case // 2 % 3]).tobytes()))
    return bytes(out)


def picture(w, h, channels, seed=1):
    """Returns smooth shapes with some noise."""
    y, x = np.mgrid[0:h, 0:w]
    planes = [127 + 90 * np.sin(x / (5 + c) + seed) * np.cos(y / (7 - c)) + 30 * (x > y) for c in range(channels)]
    a = np.stack(planes, -1) + noise(seed, w * h * channels).reshape(h, w, channels) / 32
    return np.clip(a, 0, 255).astype(np.uint8)


def encoded(im, fmt, **options):
    b = io.BytesIO()
    im.save(b, fmt, **options)
    return b.getvalue()


def png(w, h, depth, color, rows, chunks=b'', interlaced=False):
    """Returns a PNG file of packed rows, for color types and interlacing that Pillow cannot write. Rows are
    unfiltered."""
    chunk = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    head = chunk(b'IHDR', struct.pack('>IIBBBBB', w, h, depth, color, 0, 0, int(interlaced)))
    return b'\x89PNG\r\n\x1a\n' + head + chunks + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')


def packed(samples, depth):
    """Returns rows of samples, each after the filter byte 0."""
    if depth == 16:
        body = samples.astype('>u2').view(np.uint8).reshape(len(samples), -1)
    else:
        bits = np.unpackbits(samples.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth:]
        body = np.packbits(bits.reshape(len(samples), -1), axis=1)
    return b''.join(b'\0' + row.tobytes() for row in body)


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def pngs(w=29, h=19):
    chunk = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    for color, channels, depths in [(0, 1, (1, 2, 4, 8, 16)), (2, 3, (8, 16)), (3, 1, (1, 2, 4, 8)), (4, 2, (8, 16)), (6, 4, (8, 16))]:
        for depth in depths:
            n = w * h * channels
            values = noise(depth, 2 * n)[::2].astype(int) * 256 + noise(depth, 2 * n)[1::2]
            if color == 0 and depth == 16:
                values %= 400  # Pillow clips at 255
            samples = (values % 2 ** depth).reshape(h, w, channels)
            extra = b''
            if color == 3:
                n_colors = 200 if depth == 8 else 2 ** depth
                samples %= n_colors
                extra = chunk(b'PLTE', noise(7, 3 * n_colors).tobytes()) + chunk(b'tRNS', noise(8, n_colors).tobytes())
            yield f'png-{color}-{depth}', png(w, h, depth, color, packed(samples.reshape(h, -1), depth), extra)
            passes = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in ADAM7]
            rows = b''.join(packed(p.reshape(len(p), -1), depth) for p in passes if p.size)
            yield f'png-{color}-{depth}-interlaced', png(w, h, depth, color, rows, extra, True)


def bmp(w, h, bits, body, header=40, compression=0, masks=b'', palette=b'', colors=0, top_down=False, offset=None):
    info = struct.pack('<IiiHHIIiiII', header, w, -h if top_down else h, 1, bits, compression, len(body), 0, 0, colors, 0)
    if header == 12:
        info = struct.pack('<IHHHH', 12, w, h, 1, bits)
    info += masks.ljust(header - len(info), b'\0') if header > 40 else masks
    at = 14 + len(info) + len(palette)
    return struct.pack('<2sIHHI', b'BM', at + len(body), 0, 0, at if offset is None else offset) + info + palette + body


def bmps(w=13, h=7):
    def rows(bits):
        stride = (w * bits + 31) // 32 * 4
        return noise(bits, stride * h).tobytes()
    pal = lambda n, size: noise(3, n * size).tobytes()
    for bits in (1, 4, 8):
        yield f'bmp-{bits}', bmp(w, h, bits, rows(bits), palette=pal(2 ** bits, 4))
        yield f'bmp-{bits}-core', bmp(w, h, bits, rows(bits), header=12, palette=pal(2 ** bits, 3))
    grey = b''.join(bytes([i, i, i, 0]) for i in range(256))
    yield 'bmp-8-grey', bmp(w, h, 8, rows(8), palette=grey)
    yield 'bmp-8-few', bmp(w, h, 8, (noise(1, 16 * h) % 5).tobytes(), palette=pal(5, 4), colors=5)
    for bits in (16, 24, 32):
        yield f'bmp-{bits}', bmp(w, h, bits, rows(bits))
        yield f'bmp-{bits}-down', bmp(w, h, bits, rows(bits), top_down=True)
    m = lambda *masks: struct.pack(f'<{len(masks)}I', *masks)
    yield 'bmp-565', bmp(w, h, 16, rows(16), compression=3, masks=m(0xf800, 0x7e0, 0x1f))
    yield 'bmp-555', bmp(w, h, 16, rows(16), compression=3, masks=m(0x7c00, 0x3e0, 0x1f), header=40)
    yield 'bmp-rgba', bmp(w, h, 32, rows(32), compression=3, masks=m(0xff, 0xff00, 0xff0000, 0xff000000), header=124)
    yield 'bmp-xbgr', bmp(w, h, 32, rows(32), compression=3, masks=m(0xff000000, 0xff0000, 0xff00, 0), header=56)
    yield 'bmp-zero', bmp(w, h, 32, rows(32), compression=3, masks=m(0, 0, 0, 0), header=56)
    rle8 = b'\x05\x01\x00\x03\x02\x03\x04\x00\x05\x09' + b'\x00\x00' + b'\x00\x02\x03\x01' + b'\x0a\x07' + b'\x00\x00' + (b'\x0d\x0b\x00\x00') * 4 + b'\x00\x01'
    yield 'bmp-rle8', bmp(w, h, 8, rle8, compression=1, palette=pal(256, 4))
    rle4 = b'\x05\x12\x00\x06\x34\x56\x70\x00\x02\x9a' + b'\x00\x00' + (b'\x0d\xbc\x00\x00') * 6 + b'\x00\x01'
    yield 'bmp-rle4', bmp(w, h, 4, rle4, compression=2, palette=pal(16, 4))


def gifs(w=31, h=17):
    p = Image.fromarray(picture(w, h, 3)).quantize(60)
    yield 'gif', encoded(p, 'GIF')
    yield 'gif-interlaced', encoded(p, 'GIF', interlace=1)
    yield 'gif-transparent', encoded(p, 'GIF', transparency=3)
    yield 'gif-grey', encoded(Image.fromarray(picture(w, h, 1)[..., 0]), 'GIF')
    others = [Image.fromarray(picture(w, h, 3, s)).quantize(30) for s in (2, 3)]
    yield 'gif-animated', encoded(p, 'GIF', save_all=True, append_images=others, duration=50)
    # A frame smaller than the screen, at an offset.
    def moved(data, screen, corner):
        data = bytearray(data)
        data[6:10] = struct.pack('<HH', *screen)
        at = 13 + (3 << (data[10] & 7) + 1) if data[10] & 128 else 13
        while data[at] == 0x21:
            at += 2
            while data[at]:
                at += data[at] + 1
            at += 1
        assert data[at] == 0x2c
        data[at + 1:at + 5] = struct.pack('<HH', *corner)
        return bytes(data)
    plain = encoded(p, 'GIF')
    yield 'gif-offset', moved(plain, (w + 9, h + 6), (4, 3))
    yield 'gif-beyond', moved(plain, (w - 9, h - 6), (4, 3))
    yield 'gif-offset-transparent', moved(encoded(p, 'GIF', transparency=3), (w + 9, h + 6), (4, 3))


def webps(w=33, h=21):
    rgb, rgba = Image.fromarray(picture(w, h, 3)), Image.fromarray(picture(w, h, 4))
    yield 'webp-lossless', encoded(rgb, 'WEBP', lossless=True)
    yield 'webp-lossless-alpha', encoded(rgba, 'WEBP', lossless=True, exact=True)
    yield 'webp-lossy', encoded(rgb, 'WEBP', quality=80)
    yield 'webp-lossy-low', encoded(rgb, 'WEBP', quality=5)
    yield 'webp-lossy-alpha', encoded(rgba, 'WEBP', quality=70)
    yield 'webp-animated', encoded(rgb, 'WEBP', save_all=True, append_images=[Image.fromarray(picture(w, h, 3, 5))], lossless=True)


def exif(orientation, big=False):
    order = '>' if big else '<'
    tiff = (b'MM\0*' if big else b'II*\0') + struct.pack(order + 'IHHHI', 8, 1, 0x112, 3, 1)
    return b'Exif\0\0' + tiff + struct.pack(order + 'HHI', orientation, 0, 0)


def jpegs(w=45, h=30):
    rgb, grey = Image.fromarray(picture(w, h, 3)), Image.fromarray(picture(w, h, 1)[..., 0])
    for sub, name in enumerate(('444', '422', '420')):
        for progressive in (False, True):
            yield f'jpeg-{name}' + '-progressive' * progressive, encoded(rgb, 'JPEG', quality=85, subsampling=sub, progressive=progressive)
    yield 'jpeg-411', encoded(rgb, 'JPEG', quality=85, subsampling='4:1:1')
    yield 'jpeg-grey', encoded(grey, 'JPEG', quality=60)
    yield 'jpeg-grey-progressive', encoded(grey, 'JPEG', quality=60, progressive=True)
    yield 'jpeg-low', encoded(rgb, 'JPEG', quality=10, optimize=True)
    yield 'jpeg-restart', encoded(rgb, 'JPEG', quality=75, restart_marker_rows=1)
    yield 'jpeg-cmyk', encoded(Image.merge('CMYK', [Image.fromarray(picture(w, h, 4)[..., c]) for c in range(4)]), 'JPEG', quality=90)
    yield 'jpeg-rgb', encoded(rgb, 'JPEG', quality=90, keep_rgb=True)


def samplings():
    """Returns JPEG images in the layout of `images.bin`. Pillow supports fewer samplings than simplejpeg, but
    progressive images."""
    import simplejpeg
    out = bytearray()
    for i, (w, h) in enumerate([(1, 1), (2, 3), (3, 2), (5, 7), (9, 17), (16, 15), (33, 31), (3, 40), (40, 3)]):
        pixels = np.ascontiguousarray(picture(w, h, 3, i))
        cases = [(s, simplejpeg.encode_jpeg(pixels, quality=80, colorsubsampling=s)) for s in ('444', '422', '420', '440', '411')]
        cases.append(('420-progressive', encoded(Image.fromarray(pixels), 'JPEG', quality=90, subsampling=2, progressive=True)))
        for kind, data in cases:
            name = f'jpeg-{kind}-{w}x{h}'
            digest = zlib.crc32(Image.open(io.BytesIO(data)).convert('RGB').tobytes())
            out += struct.pack('<B', len(name)) + name.encode() + struct.pack('<I', len(data)) + data + struct.pack('<HHII', w, h, 4, digest)
    return bytes(out)


PART_SIZES = [(1, 1), (2, 1), (1, 2), (3, 5), (16, 16), (48, 48), (47, 49), (100, 75), (75, 100), (112, 112), (300, 150), (150, 300),
              (333, 500), (640, 480), (481, 641), (1000, 10), (10, 1000), (1200, 90), (90, 1200), (2048, 16), (8192, 48), (8192, 16), (16, 8192)]


def strip_parts(strip, sizes):
    """Returns the pixels of images as bytes. `strip` holds the patches of all images concatenated horizontally."""
    out, at, patch = bytearray(), 0, strip.shape[1]
    for rows, columns in sizes:
        patches = strip[:, :, at:at + rows * columns * patch].reshape(3, patch, rows, columns, patch)
        out += np.ascontiguousarray(patches.transpose(2, 1, 3, 4, 0)).round().astype(np.uint8).tobytes()
        at += rows * columns * patch
    return bytes(out)


def deepseek_parts(image, side, tile, tiles, color):
    """Returns the tiles and the whole image as `format_messages` and `dynamic_preprocess` in the published code of DeepSeek-OCR 2 cut them."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
    found = []
    if max(image.size) > tile:
        columns, rows = get_optimal_tiled_canvas(image.size[::-1], (tile, tile), *tiles)
        whole = image.resize((columns * tile, rows * tile))
        corners = [(column * tile, row * tile) for row in range(rows) for column in range(columns)]
        found = [whole.crop((x, y, x + tile, y + tile)) for x, y in corners]
    return [*found, ImageOps.pad(image, (side, side), color=color)]


def window_parts(image, tile, side, longest):
    """Returns the tiles and the whole image as the published preprocessing of Step3-VL cuts them. The sizes follow
    transformers, which stretches the tiles of an image with a side below a tile. The published code of Step3-VL pads
    them with black borders."""
    from transformers.models.step3p7.image_processing_step3p7 import Step3p7ImageProcessor
    processor = Step3p7ImageProcessor(max_image_size=longest)
    size, cut, window, columns, rows, is_squared = processor._plan_patches(*image.size, side, tile)
    if is_squared:
        square = Image.new('RGB', (max(image.size),) * 2)
        square.paste(image)
        image = square
    image = image.resize(size, Image.Resampling.BILINEAR)
    whole, found = image.resize(cut, Image.Resampling.BILINEAR), []
    for y in range(0, rows * window, window or 1):
        for x in range(0, columns * window, window):
            found.append(whole.crop((x, y, x + window, y + window)).resize((tile, tile), Image.Resampling.BILINEAR))
    return [*found, image.resize((side, side), Image.Resampling.BILINEAR)]


def parts():
    from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    raw = dict(do_rescale=False, do_normalize=False, do_convert_rgb=False)
    square = lambda side: dict(height=side, width=side)
    processors = dict(
        granite4_vision=LlavaNextImageProcessorPil(
            size=dict(shortest_edge=48), crop_size=square(48), image_grid_pinpoints=[[48, 96], [96, 48], [48, 144], [96, 96]], **raw
        ),
        gemma3=Gemma3ImageProcessorPil(size=square(112), **raw),
        gemma3nv=SiglipImageProcessorPil(size=square(192), resample=Image.Resampling.BILINEAR, **raw),
        glm5v=Glm5NextImageProcessorPil(patch_size=8, merge_size=2, min_image_tokens=8, max_image_tokens=80, **raw),
        idefics3=Idefics3ImageProcessorPil(size=dict(longest_edge=224), max_image_size=dict(longest_edge=112), do_pad=False, **raw),
        internvl=GotOcr2ImageProcessorPil(crop_to_patches=True, min_patches=1, max_patches=12, size=square(48), **raw),
        janus_pro=JanusImageProcessorPil(size=square(48), image_mean=[0.5, 0.45, 0.4], **raw),
        ling3vl=Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, size=dict(shortest_edge=8 * 256, longest_edge=4096 * 256), **raw),
        mimovl=Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, size=dict(shortest_edge=2048, longest_edge=20480), **raw),
        mlp=LlavaImageProcessorPil(do_pad=True, size=dict(shortest_edge=48), crop_size=square(48), image_mean=[0.5, 0.45, 0.4], **raw),
        minicpmv4_6=MiniCPMV4_6ImageProcessorPil(scale_resolution=96, patch_size=4, **raw),
        pixtral=PixtralImageProcessorPil(size=dict(longest_edge=144), patch_size=square(16), **raw),
        qwen2vl_merger=Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, size=dict(shortest_edge=8 * 256, longest_edge=4096 * 256), **raw),
    )
    lines = []
    for name, processor in processors.items():
        for case, (w, h) in enumerate(PART_SIZES):
            if name in ('glm5v', 'ling3vl', 'mimovl', 'minicpmv4_6', 'pixtral', 'qwen2vl_merger') and max(w, h) > 200 * min(w, h):
                continue
            if name == 'mimovl' and max(w, h) > 100 * min(w, h):
                continue  # The published sizes exceed the limits.
            if name == 'pixtral' and max(w, h) > 144 * min(w, h):
                continue  # The processor computes a side length of 0.
            image = Image.fromarray(noise(case, w * h * 3).reshape(h, w, 3))
            got = processor(images=[image], return_tensors='np')
            pixels = np.asarray(got['pixel_values'])
            if name in ('granite4_vision', 'idefics3'):
                pixels = pixels[0]
            if name == 'minicpmv4_6':
                lines.append(f'{name} {case} {w} {h} {len(got["target_sizes"])} {zlib.crc32(strip_parts(pixels[0], got["target_sizes"]))}\n')
                continue
            if name in ('glm5v', 'ling3vl', 'mimovl', 'qwen2vl_merger'):
                # Rows of patches in blocks of 2 x 2, each with its channels and two equal frames.
                _, rows, columns = got['image_grid_thw'][0]
                pixels = pixels.reshape(rows // 2, columns // 2, 2, 2, 3, 2, 8, 8)[:, :, :, :, :, 0]
                pixels = pixels.transpose(4, 0, 2, 5, 1, 3, 6).reshape(1, 3, rows * 8, columns * 8)
            parts = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).round().astype(np.uint8)
            lines.append(f'{name} {case} {w} {h} {len(parts)} {zlib.crc32(parts.tobytes())}\n')
    from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches
    for case, (w, h) in enumerate(PART_SIZES):
        if max(w, h) > 200 * min(w, h):
            continue
        # Patch size and limits of the number of patches in the test model.
        patch, least, most = 8, 32, 320
        n_patches = min(max((w // patch) * (h // patch), 1, least), most)
        height, width = get_image_size_for_max_num_patches(h, w, patch, n_patches)
        image = Image.fromarray(noise(case, w * h * 3).reshape(h, w, 3)).resize((width, height), Image.Resampling.BILINEAR)
        lines.append(f'phi4 {case} {w} {h} 1 {zlib.crc32(image.tobytes())}\n')
    from record_media_restated import stepped
    from transformers.models.muse_glimmer import image_processing_muse_glimmer as glimmer
    from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import smart_resize as resized_of_minimax
    # Of two sizes with equal ratios, the larger one is recorded; see `record_media_windows.py`.
    glimmer.set = lambda sizes: sorted(sizes, reverse=True)
    for case, (w, h) in enumerate(PART_SIZES):
        image = Image.fromarray(noise(case, w * h * 3).reshape(h, w, 3))
        if max(w, h) <= 100 * min(w, h):  # The published sizes of narrower images exceed the limits.
            height, width = glimmer.smart_resize(h, w, 16, 80)
            resized_image = image.resize((width, height), Image.Resampling.LANCZOS)
            lines.append(f'muse-glimmer {case} {w} {h} 1 {zlib.crc32(resized_image.tobytes())}\n')
            height, width = resized_of_minimax(h, w, 16, 4 * 256, 80 * 256)
            resized_image = image.resize((width, height), Image.Resampling.BICUBIC)
            lines.append(f'minimax_m3 {case} {w} {h} 1 {zlib.crc32(resized_image.tobytes())}\n')
        if max(w, h) <= 200 * min(w, h):
            resized_image = image.resize(stepped(w, h, 16, 80), Image.Resampling.BILINEAR)
            lines.append(f'youtuvl {case} {w} {h} 1 {zlib.crc32(resized_image.tobytes())}\n')
        if max(w, h) > 144 * min(w, h) and min(w, h) >= 32:
            continue  # The published code computes a side length of 0.
        found = window_parts(image, 48, 64, 144)
        lines.append(f'step3vl {case} {w} {h} {len(found)} {zlib.crc32(b"".join(part.tobytes() for part in found))}\n')
    for case, (w, h) in enumerate(PART_SIZES):
        if round(64 * min(w, h) / max(w, h)) == 0:
            continue  # The published code fails for a side length of 0.
        image = Image.fromarray(noise(case, w * h * 3).reshape(h, w, 3))
        found = deepseek_parts(image, 64, 48, (2, 4), (127, 114, 102))
        lines.append(f'deepseekocr2 {case} {w} {h} {len(found)} {zlib.crc32(b"".join(part.tobytes() for part in found))}\n')
    return ''.join(lines).encode()


def images():
    out = bytearray()
    small = Image.fromarray(picture(11, 6, 3))
    turned = [(f'jpeg-turned-{o}', encoded(small, 'JPEG', quality=95, subsampling=0, exif=exif(o, o % 2 == 0))) for o in range(1, 9)]
    turned += [(f'png-turned-{o}', encoded(small, 'PNG', exif=exif(o)[6:])) for o in (5, 6)]
    turned += [(f'webp-turned-{o}', encoded(small, 'WEBP', lossless=True, exif=exif(o)[6:])) for o in (3, 8)]
    for group in (pngs(), bmps(), gifs(), webps(), jpegs(), turned):
        for name, data in group:
            im = Image.open(io.BytesIO(data))
            im = ImageOps.exif_transpose(im).convert('RGB')
            lossy = name.startswith('jpeg')
            pixels = im.tobytes() if lossy else struct.pack('<I', zlib.crc32(im.tobytes()))
            out += struct.pack('<B', len(name)) + name.encode() + struct.pack('<I', len(data)) + data
            out += struct.pack('<HHI', *im.size, len(pixels)) + pixels
    return bytes(out)


def signal(n, seed=0):
    """Returns tones and noise as 16-bit integers. `media/tests/common` contains the same function."""
    i = np.arange(n, dtype=np.int64)
    saw = lambda period: (i % period) * 8000 // period - 4000
    loud = np.abs(i * 7 % 9000 - 4500)
    a = (saw(37) + saw(101) + noise(seed, n).astype(np.int64) * 8 - 1024) * loud // 4500
    a[n // 3:n // 3 + 700] = 0
    return np.clip(a, -32768, 32767).astype(np.int16)


def audio():
    import soundfile as sf
    out = bytearray()
    stereo = lambda n: np.stack([signal(n), signal(n, 5)], -1)
    cases = [('wav-u8', 8000, 1, 'WAV', 'PCM_U8'), ('wav-16', 16000, 1, 'WAV', 'PCM_16'), ('wav-16-stereo', 16000, 2, 'WAV', 'PCM_16'),
             ('wav-24', 16000, 2, 'WAVEX', 'PCM_24'), ('wav-32', 16000, 1, 'WAV', 'PCM_32'), ('wav-float', 16000, 1, 'WAV', 'FLOAT'),
             ('wav-double', 16000, 1, 'WAV', 'DOUBLE'), ('wav-ulaw', 8000, 1, 'WAV', 'ULAW'), ('wav-alaw', 8000, 1, 'WAV', 'ALAW'),
             ('flac-16', 16000, 1, 'FLAC', 'PCM_16'), ('flac-24-stereo', 44100, 2, 'FLAC', 'PCM_24'), ('ogg', 16000, 1, 'OGG', 'VORBIS'),
             ('ogg-stereo', 44100, 2, 'OGG', 'VORBIS'), ('mp3', 16000, 1, 'MP3', 'MPEG_LAYER_III'), ('mp3-stereo', 44100, 2, 'MP3', 'MPEG_LAYER_III')]
    for name, rate, channels, container, subtype in cases:
        n = 2400 if container in ('WAV', 'WAVEX', 'FLAC') else 6000
        b = io.BytesIO()
        samples = stereo(n) if channels == 2 else signal(n)
        if subtype in ('FLOAT', 'DOUBLE'):
            samples = samples / 32768
        sf.write(b, samples, rate, format=container, subtype=subtype)
        back, _ = sf.read(io.BytesIO(b.getvalue()), dtype='float64', always_2d=True)
        mono = np.round(back.mean(1) * 32768).clip(-32768, 32767).astype('<i2')
        data = b.getvalue()
        out += struct.pack('<B', len(name)) + name.encode() + struct.pack('<I', len(data)) + data + struct.pack('<II', rate, len(mono)) + mono.tobytes()
    return bytes(out)


def mels():
    import torch
    from transformers import (BatchFeature, Gemma3nAudioFeatureExtractor, Gemma4AudioFeatureExtractor, GraniteSpeechFeatureExtractor, ParakeetFeatureExtractor,
                              WhisperFeatureExtractor)
    out = bytearray()

    def record(kind, n, rows):
        rows = np.ascontiguousarray(rows, np.float32)
        out.extend(struct.pack('<BHII', kind, rows.shape[1], n, rows.shape[0]) + rows.tobytes())

    x = lambda n: signal(n).astype(np.float64) / 32768
    for n_mel, n in ((80, 4000), (128, 3210), (80, 190)):
        e = WhisperFeatureExtractor(feature_size=n_mel)
        record(0, n, e._np_extract_fbank_features(x(n)[None], 'cpu')[0].T)
    torch.set_default_dtype(torch.float64)
    single, torch.float32 = torch.float32, torch.float64
    e = ParakeetFeatureExtractor()
    e.mel_filters = e.mel_filters.double()
    # Padding would round to float32; a single file needs no padding.
    e.pad = lambda batch, **_: BatchFeature({'input_features': torch.from_numpy(x(4100))[None, :, None], 'audio_lengths': torch.tensor([4100])})
    got = e(x(4100), sampling_rate=16000)
    torch.float32 = single
    torch.set_default_dtype(single)
    record(1, 4100, np.asarray(got['input_features'])[0][np.asarray(got['attention_mask'])[0] != 0])
    for kind, e in ((2, Gemma3nAudioFeatureExtractor(feature_size=128)), (3, Gemma4AudioFeatureExtractor())):
        e.window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(e.frame_length) / e.frame_length)
        n, padded = 4100, 4224
        wave = np.zeros((1, padded)); wave[0, :n] = x(n)
        rows, mask = e._extract_spectrogram(wave, np.arange(padded) < n)
        record(kind, n, rows[np.asarray(mask, bool)])
    # The extractor rounds samples to float32, and drops the last one of an odd number of frames.
    float32, torch.Tensor.float = torch.Tensor.float, torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    for n in (4000, 3370):
        record(4, n, GraniteSpeechFeatureExtractor()._extract_mel_spectrograms(torch.from_numpy(x(n))[None])[0].reshape(-1, 80))
    torch.set_default_dtype(single)
    torch.Tensor.float = float32
    return bytes(out)


if __name__ == '__main__':
    for name, make in dict(resized=resized, images=images, samplings=samplings, parts=parts, audio=audio, mels=mels).items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        data = make()
        open(f'{sys.argv[1]}/{name}.{"txt" if name == "parts" else "bin"}', 'wb').write(data)
        print(name, len(data))
