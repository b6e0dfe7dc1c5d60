# The page in a container, without a GPU: docker build -t speculoscope . && docker run -p 7860:7860 speculoscope
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 user && install --directory --owner user --group user /home/user/.cache
WORKDIR /home/user/app
COPY requirements.txt ./
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -r requirements.txt
COPY --chown=user app.py README.md LICENSE ./
COPY --chown=user decoding decoding
COPY --chown=user viz viz
COPY --chown=user models models
COPY --chown=user prompts prompts
COPY --chown=user recordings recordings
COPY --chown=user results results
COPY --chown=user lessons lessons
USER 1000
ENV GRADIO_SERVER_NAME=0.0.0.0 PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/', timeout=9)"]
CMD ["python", "app.py", "--port", "7860"]
